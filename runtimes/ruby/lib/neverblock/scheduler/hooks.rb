# frozen_string_literal: true

require "io/nonblock"
require "socket"
require "timeout"

module NeverBlock
  class Scheduler
    # What Ruby calls instead of blocking. Which hooks there are, and their arguments, depends on
    # Ruby's version: those that came later stand at the end.
    module Hooks
      # One call of the system for what is left of the buffer, which Ruby 3.1 can only slice.
      module SlicedBuffers
        private

        def read_once(io, buffer, at) = rest(buffer, at).then { |left| left.read(io, left.size) }

        def write_once(io, buffer, at) = rest(buffer, at).then { |left| left.write(io, left.size) }

        def rest(buffer, at) = at.zero? ? buffer : buffer.slice(at, buffer.size - at)
      end

      # The same from Ruby 3.2 on, where a length means "until there is that much", and 0 "once".
      module WholeBuffers
        private

        def read_once(io, buffer, at) = buffer.read(io, 0, at)

        def write_once(io, buffer, at) = buffer.write(io, 0, at)
      end

      include RUBY_VERSION < "3.2" ? SlicedBuffers : WholeBuffers

      # Standard streams are shared with other processes, which nonblocking mode would surprise.
      SHARED_FILENO_MAX = 2
      AGAIN = -Errno::EAGAIN::Errno
      NUMERIC = /\A(?:[\d.]+|[\h:.]*:[\h:.]*(?:%.+)?)\z/

      OFFLOAD = Offload.new

      def fiber(**options, &block) = start(**options, &block)

      def kernel_sleep(duration = nil)
        block(:sleep, duration)
        true
      end

      # Returns whether somebody unblocked it, rather than the time.
      def block(_blocker, timeout = nil)
        fiber = Fiber.current
        wait = Wait.new(fiber)
        @parked[fiber] = wait
        timer = timeout && @timers.after(timeout) { wake(wait, false) }
        suspend(wait)
      ensure
        @parked.delete(fiber)
        @timers.cancel(timer)
      end

      # Any thread may call it. The loop, not this thread, looks whether the fiber still waits: it
      # may be about to.
      def unblock(_blocker, fiber)
        if Thread.current.equal?(@thread)
          unpark(fiber)
        else
          defer { unpark(fiber) }
        end
        true
      end

      # Returns the events that are there, or false when the time is up.
      def io_wait(io, events, timeout = nil)
        if timeout&.zero?
          found = poll(io, events)
          return found.zero? ? false : found
        end

        wait = Wait.new(Fiber.current, events)
        timer = timeout && @timers.after(timeout) { wake(wait, false) }
        waiting_for(wait, [io]) { suspend(wait) }
      ensure
        @timers.cancel(timer)
      end

      # Reads at least this many bytes, or none if that is 0 and nothing is there: Ruby then waits
      # by itself.
      def io_read(io, buffer, length, offset = 0)
        transfer_bytes(io, buffer, length, offset, IO::READABLE) do |at|
          direct { read_once(io, buffer, at) }
        end
      end

      def io_write(io, buffer, length, offset = 0)
        transfer_bytes(io, buffer, length, offset, IO::WRITABLE) do |at|
          direct { write_once(io, buffer, at) }
        end
      end

      # Wakes who waits for it; Ruby itself closes it. Newer versions hand over its number.
      def io_close(io)
        watch = @watches[io] || @watches.each_value.find { |other| other.fileno == io }
        if watch
          @watches.delete(watch.io)
          watch.abandon
        end
        false
      end

      # A thread waits for the process. One that was left by a time-out still gets its status, which
      # who asks again is given.
      def process_wait(pid, flags)
        thread = @processes[pid]
        now = flags.anybits?(Process::WNOHANG)
        return direct { Process::Status.wait(pid, flags) } if now && thread.nil?
        return if now && thread.alive?

        thread ||= Thread.new { Process::Status.wait(pid, flags) }
        @processes[pid] = thread if pid.positive?
        status = thread.value
        @processes.delete(pid)
        status
      end

      # Raises in this fiber alone, and only while it is inside the block.
      def timeout_after(duration, exception = Timeout::Error, message = "execution expired")
        fiber = Fiber.current
        inside = true
        timer = @timers.after(duration) { interrupt(fiber, exception, message) { inside } }
        yield duration
      ensure
        inside = false
        @timers.cancel(timer)
      end

      # Returns the addresses as texts; none if the name is unknown.
      def address_resolve(name)
        return [name] if NUMERIC.match?(name)

        OFFLOAD.call { Addrinfo.getaddrinfo(name, nil, nil, :STREAM).map(&:ip_address).uniq }
      rescue SocketError
        []
      end

      # Waits for several IOs. From Ruby 3.2 it is a hook; before that IO.select is led here.
      def io_select(readers, writers = nil, errors = nil, timeout = nil)
        deadline = timeout && Timers.now + timeout
        until (found = direct { IO.select(readers, writers, errors, 0) })
          left = deadline && deadline - Timers.now
          return if left && left <= 0

          select_once(readers, writers, errors, left)
        end
        found
      end

      # Raises in a fiber of this scheduler; any thread may ask for it. Called from Ruby 3.5 when an
      # IO is closed that the fiber waits for.
      def fiber_interrupt(fiber, exception)
        defer { interrupt(fiber, exception) }
        true
      end

      # Runs work of the interpreter, such as compressing, in a thread. Called from Ruby 3.4.
      def blocking_operation_wait(work)
        OFFLOAD.call { work.call }
        nil
      end

      # Lets the other fibers run first. Called from Ruby 4.0.
      def yield
        wait = Wait.new(Fiber.current)
        wake(wait, nil)
        suspend(wait)
      end

      private

      def unpark(fiber)
        wait = @parked[fiber]
        wake(wait, true) if wait
      end

      def waiting_for(wait, ios)
        watches = ios.map { |io| watch(io).tap { |watch| watch.add(wait) } }
        yield
      ensure
        watches&.each do |watch|
          watch.remove(wait)
          forget(watch)
        end
      end

      def select_once(readers, writers, errors, timeout)
        wait = Wait.new(Fiber.current, Watch::READ | Watch::WRITE)
        timer = timeout && @timers.after(timeout) { wake(wait, false) }
        waits = { Watch::READ => [*readers, *errors], Watch::WRITE => [*writers] }
        entries = waits.flat_map { |events, ios| ios.map { |io| [io, part_of(wait, events)] } }
        entries.map! { |io, part| [watch(io).tap { |watch| watch.add(part) }, part] }
        suspend(wait)
      ensure
        @timers.cancel(timer)
        entries&.each do |watch, part|
          next unless watch.is_a?(Watch)

          watch.remove(part)
          forget(watch)
        end
      end

      # A wait for one of several IOs, which wakes the fiber through the wait for all of them.
      Part = Struct.new(:scheduler, :whole, :events) do
        def take(value)
          scheduler.wake(whole, value)
          false
        end
      end

      def part_of(wait, events) = Part.new(self, wait, events)

      def poll(io, events)
        readers = events.anybits?(Watch::READ) ? [io] : nil
        writers = events.anybits?(Watch::WRITE) ? [io] : nil
        readable, writable = direct { IO.select(readers, writers, nil, 0) }
        (readable.to_a.any? ? events & Watch::READ : 0) | (writable.to_a.any? ? Watch::WRITE : 0)
      end

      # The block moves bytes once; it returns how many, 0 at the end, or a negative error number.
      def transfer_bytes(io, buffer, length, offset, events)
        unblock_io(io)
        total = 0
        loop do
          moved = yield offset + total
          total += moved if moved.positive?
          if moved == AGAIN && total < length
            io_wait(io, events)
          elsif moved <= 0
            return total.zero? ? moved : total
          elsif total >= length || offset + total >= buffer.size
            return total
          end
        end
      end

      def unblock_io(io)
        io.nonblock = true unless io.fileno <= SHARED_FILENO_MAX || io.nonblock?
      end

      # Calls the block without these hooks: in a fiber that Ruby takes for a blocking one.
      def direct(&block)
        outcome, value = direct_fiber.resume(block)
        raise value if outcome == :raised

        value
      end

      def direct_fiber
        return @direct if @direct&.alive?

        @direct = Fiber.new(blocking: true) do |block|
          loop do
            answer = begin
              [:returned, block.call]
            rescue StandardError => error
              [:raised, error]
            end
            block = nil
            block = Fiber.yield(answer)
          end
        end
      end
    end
  end
end

# Before Ruby 3.2 there is no hook for IO.select, which would hold the reactor.
if RUBY_VERSION < "3.2"
  module NeverBlock
    module SelectInFibers
      def select(readers, writers = nil, errors = nil, timeout = nil)
        scheduler = Fiber.current_scheduler
        return super unless scheduler.is_a?(Scheduler) && timeout != 0

        scheduler.io_select(readers, writers, errors, timeout)
      end
    end
    IO.singleton_class.prepend(SelectInFibers)
  end
end
