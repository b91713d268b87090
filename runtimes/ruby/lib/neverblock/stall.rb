# frozen_string_literal: true

module NeverBlock
  # What a loop says of itself: when each callback begins, and when it rests. A callback that took
  # longer than the limit is told to who watches, unless that saw it by itself.
  class Pulse
    attr_reader :thread, :beats, :began
    attr_accessor :limit, :late, :seen

    def initialize(thread)
      @thread = thread
      @beats = 0
      @began = nil
      @limit = Float::INFINITY
    end

    # Returns the time.
    def beat
      now = Timers.now
      tell(now) if @began && now - @began > @limit
      @beats += 1
      @began = now
    end

    # Returns the time.
    def rest
      now = Timers.now
      tell(now) if @began && now - @began > @limit
      @began = nil
      now
    end

    private

    def tell(now) = @seen == @beats || @late.call(now - @began)
  end

  # Looks from a thread of its own whether a callback holds the loop, and logs its stack. C code
  # that keeps the interpreter's lock keeps this thread waiting too; that is said afterwards.
  class StallDetector
    LIMIT_S = 0.25
    LOOKS_PER_LIMIT = 4
    STACK_LINES = 12
    # A program that stalls all the time does not fill its log.
    LOG_EVERY_S = 1

    attr_reader :stalls

    def initialize(pulse, limit: LIMIT_S, log: NeverBlock.method(:log))
      @pulse = pulse
      @limit = limit
      @log = log
      @logged_at = -LOG_EVERY_S
      @stalls = 0
    end

    def start
      @pulse.late = ->(seconds) { say_late(seconds) }
      @pulse.limit = @limit
      @thread = Thread.new do
        Thread.current.name = "neverblock stall detector"
        loop { sleep(@limit / LOOKS_PER_LIMIT) && look }
      end
      self
    end

    def stop
      @pulse.limit = Float::INFINITY
      @thread&.kill
    end

    private

    def look
      began = @pulse.began
      beats = @pulse.beats
      return if began.nil? || beats == @pulse.seen || (held = Timers.now - began) <= @limit

      stack = @pulse.thread.backtrace || []
      # It may have gone on while this thread looked.
      return unless @pulse.beats == beats

      @pulse.seen = beats
      say("one callback holds the reactor since #{held.round(2)} s, at " \
          "#{stack.first(STACK_LINES).join(" < ")}")
    end

    def say_late(seconds)
      say("one callback held the reactor for #{seconds.round(2)} s; its stack could not be seen, " \
          "as C code kept the interpreter's lock, or the machine was busy")
    end

    def say(line)
      @stalls += 1
      return if Timers.now - @logged_at < LOG_EVERY_S

      @logged_at = Timers.now
      @log.call(line)
    end
  end
end
