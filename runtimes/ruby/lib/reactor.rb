# frozen_string_literal: true

# An event loop in pure Ruby on the standard library. It tells blocks, or the objects themselves,
# that they can be read from or written to, and calls timers. Any IO may be attached; files make
# little sense, as they are always ready. Several reactors may run at once, each in its thread.
module Reactor
  # A timer of a reactor; `every` is nil if it rings once.
  Timer = Struct.new(:at, :every, :block)

  # A handler that objects include to attach themselves. It chains others by including them: a
  # class is built once, and no object is extended while requests are served.
  module Handler
    attr_reader :reactor

    def attach_to(reactor, *modes)
      @reactor = reactor
      modes.each { |mode| reactor.attach(mode, self) }
    end

    def detach = Base::NOTIFICATIONS.each_key { |mode| reactor.detach(mode, self) }
  end

  # One loop with what is attached to it. Any thread may attach, detach, set timers and stop it.
  class Base
    NOTIFICATIONS = { read: :notify_readable, write: :notify_writable }.freeze

    def initialize
      @attached = { read: {}, write: {} }.each_value(&:compare_by_identity)
      @timers = []
      @lock = Mutex.new
      @wakeup, @waker = IO.pipe
      @running = false
    end

    # Calls the block with the IO, or its own `notify_readable` or `notify_writable`, each time it
    # is ready. What was attached for this mode before is replaced.
    def attach(mode, io, &block)
      notification = NOTIFICATIONS.fetch(mode) { raise ArgumentError, "no mode #{mode.inspect}" }
      raise ArgumentError, "give a block, or define #{notification}" unless
        block || io.respond_to?(notification)

      @lock.synchronize { @attached[mode][io] = block || notification.to_proc }
      wake
      io
    end

    def detach(mode, io) = @lock.synchronize { @attached.fetch(mode).delete(io) }

    def attached?(mode, io) = @lock.synchronize { @attached.fetch(mode).key?(io) }

    def after(seconds, &block) = add(Timer.new(now + seconds, nil, block))

    def every(seconds, &block) = add(Timer.new(now + seconds, seconds, block))

    def cancel(timer) = @lock.synchronize { @timers.delete_if { |other| other.equal?(timer) } }

    # Serves until `stop`. A handler's exception leaves `run`, which may be called again.
    def run
      @running = true
      run_once while @running
    ensure
      @running = false
    end

    def run_once
      deadline = @lock.synchronize { @timers.first&.at }
      notify(*ready(deadline && [deadline - now, 0].max))
      ring(now)
    end

    # Ends `run` after the handlers that are due.
    def stop
      @running = false
      wake
    end

    def running? = @running

    private

    def ready(timeout)
      readers, writers = @lock.synchronize { @attached.each_value.map(&:keys) }
      IO.select([@wakeup, *readers], writers, nil, timeout) || [[], []]
    rescue IOError, Errno::EBADF # Something was closed without being detached.
      @lock.synchronize { @attached.each_value { |ios| ios.delete_if { |io, _| closed?(io) } } }
      [[], []]
    end

    def closed?(io) = io.to_io.closed?

    # A handler may detach or close what another one is about to be told of.
    def notify(readable, writable, *)
      @wakeup.read_nonblock(1024, exception: false) if readable.delete(@wakeup)
      { read: readable, write: writable }.each do |mode, ios|
        ios.each { |io| @lock.synchronize { @attached[mode][io] unless closed?(io) }&.call(io) }
      end
    end

    def ring(time)
      while (timer = @lock.synchronize { @timers.shift if @timers.first&.at&.<=(time) })
        add(timer.tap { timer.at = now + timer.every }) if timer.every
        timer.block.call
      end
    end

    def add(timer)
      @lock.synchronize { @timers.insert(@timers.bsearch_index { _1.at > timer.at } || -1, timer) }
      wake
      timer
    end

    def wake = @waker.write_nonblock(".", exception: false)

    def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end
end
