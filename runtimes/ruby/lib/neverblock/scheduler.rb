# frozen_string_literal: true

require "nio"
require_relative "timers"
require_relative "stall"
require_relative "scheduler/watch"
require_relative "scheduler/offload"
require_relative "scheduler/hooks"

module NeverBlock
  # The event loop of one thread, and the hooks by which Ruby hands it whatever would block. A fiber
  # that waits gives control to the loop, which runs in the thread's root fiber, and gets it back
  # when what it waits for is there.
  class Scheduler
    include Hooks

    # How often it looks for IOs that were closed while a fiber waits for them: closing raises no
    # event.
    CLOSED_EVERY_S = 0.5
    # How soon a time-out tries again to reach a fiber that waits for an inner one.
    INTERRUPT_AGAIN_S = 0.01

    attr_reader :timers, :pulse

    def initialize
      @selector = NIO::Selector.new
      @watches = {}.compare_by_identity
      @parked = {}.compare_by_identity
      @processes = {}
      @ready = []
      @resuming = []
      # What other threads ask for; pushing to an array is atomic.
      @foreign = []
      @timers = Timers.new
      @thread = Thread.current
      @pulse = Pulse.new(@thread)
      @waiting = 0
      @closed = false
      @fatal = nil
    end

    # Serves until the block says stop, or until nobody waits for anything.
    def run
      @loop = Fiber.current
      turn until block_given? ? yield : idle?
    ensure
      @loop = nil
    end

    # Ruby calls it when the thread ends: the fibers that still wait are waited for.
    def close
      return if @closed

      run unless @fatal
    ensure
      @closed = true
      @selector.close unless @selector.closed?
    end

    # Drops whatever still waits: the thread ends without it.
    def abandon
      @closed = true
      @selector.close unless @selector.closed?
    end

    # In a forked child: nothing is closed that the parent still uses.
    def leave_to_parent = @closed = true

    def closed? = @closed

    # Returns when what runs now began: near enough for limits of many seconds.
    def began = @pulse.began || Timers.now

    # Makes the loop turn; any thread and any signal handler may call it.
    def wakeup = @closed || @selector.wakeup

    # Calls the block in the loop, not in a fiber; any thread may ask for it.
    def defer(&block)
      @foreign << block
      wakeup
    end

    # The same for the loop's own thread, without a turn of the selector.
    def soon(&block) = @foreign << block

    # Starts a fiber at once; who starts it goes on when it first waits or ends.
    def start(**options, &block)
      launch(Fiber.new(blocking: false, **options) { guard(&block) })
    end

    # Starts a fiber that runs what is given.
    def serve(runnable)
      launch(Fiber.new { guard { runnable.run } })
    end

    def watch(io)
      @watches[io] ||= Watch.new(self, io)
    end

    def register(io, interests) = @selector.register(io, interests)

    # Calls `readable` of the handler each time the IO can be read from.
    def attach(io, handler)
      watch(io).handler = handler
    end

    def detach(io)
      return unless (watch = @watches[io])

      watch.handler = nil
      forget(watch)
    end

    # Has the loop resume the fiber of this wait.
    def wake(wait, value)
      @ready << wait if wait.take(value)
    end

    # Gives control to the loop until somebody wakes this wait.
    def suspend(wait)
      @waiting += 1
      block_given? ? yield : @loop.transfer
      wait.value
    ensure
      @waiting -= 1
      wait.fiber = nil
    end

    private

    def launch(fiber)
      caller = Fiber.current
      if @loop.nil? || caller.equal?(@loop)
        begin_outside_of_run { fiber.transfer }
      else
        wait = Wait.new(caller)
        wake(wait, nil)
        suspend(wait) { fiber.transfer }
      end
      fiber
    end

    # An IO that was abandoned meanwhile may have a new watch.
    def forget(watch)
      @watches.delete(watch.io) if !watch.used? && @watches[watch.io].equal?(watch)
    end

    # The first fiber of a thread may be started before the loop runs; the fiber that starts it is
    # the root, to which it returns.
    def begin_outside_of_run
      outside = @loop.nil?
      @loop = Fiber.current if outside
      @pulse.beat
      yield
    ensure
      @loop = nil if outside
    end

    def idle?
      @ready.empty? && @foreign.empty? && @waiting.zero? && @watches.none? { |_, w| w.handler }
    end

    def turn
      monitors = @selector.select(patience(@pulse.rest))
      now = @pulse.beat
      busy = @timers.ring(now)
      monitors&.each do |monitor|
        @pulse.beat if busy
        busy = true
        # A handler before this one may have closed it.
        monitor.value.ready unless monitor.closed?
      end
      look_for_closed(now)
      resume_foreign unless @foreign.empty?
      resume_ready
      raise_fatal if @fatal
    end

    def patience(now)
      return 0 unless @ready.empty? && @foreign.empty?

      wait = @timers.wait(now)
      return wait if @watches.empty? || (wait && wait < CLOSED_EVERY_S)

      CLOSED_EVERY_S
    end

    # Fibers that become ready meanwhile are resumed in the next turn: IO gets its share.
    def resume_ready
      return if @ready.empty?

      @ready, @resuming = @resuming, @ready
      @resuming.each do |wait|
        @pulse.beat
        wait.fiber&.transfer
      end
      @resuming.clear
    end

    def resume_foreign
      while (block = @foreign.shift)
        @pulse.beat
        block.call
      end
    end

    def look_for_closed(now)
      return if @looked_at && now - @looked_at < CLOSED_EVERY_S

      @looked_at = now
      @watches.select { |io, watch| watch.waits? && closed_io?(io) }.each do |io, watch|
        watch.abandon
        @watches.delete(io)
      end
    end

    def closed_io?(io) = io.to_io.closed?

    # An exception ends its fiber and no other; one that ends programs ends the loop.
    def guard
      yield
    rescue SystemExit, SignalException => error
      @fatal = error
    rescue Exception => error # rubocop:disable Lint/RescueException
      NeverBlock.log("a fiber ended by #{NeverBlock.describe(error)}")
    end

    def raise_fatal
      error = @fatal
      raise error
    end

    # Raises in a fiber that waits. One that waits for an inner fiber (an enumerator's) cannot be
    # reached; it is tried again until the owner withdraws.
    def interrupt(fiber, *exception, &wanted)
      return unless fiber.alive? && (wanted.nil? || wanted.call)

      @pulse.beat
      fiber.raise(*exception)
    rescue FiberError
      @timers.after(INTERRUPT_AGAIN_S) { interrupt(fiber, *exception, &wanted) }
    end
  end
end
