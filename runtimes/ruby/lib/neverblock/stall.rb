# frozen_string_literal: true

module NeverBlock
  # What a loop says of itself: it counts each callback that it begins, and when it rests.
  class Pulse
    attr_reader :thread, :beats

    def initialize(thread)
      @thread = thread
      @beats = 0
      @resting = true
    end

    def beat
      @beats += 1
      @resting = false
    end

    def rest = @resting = true

    def resting? = @resting
  end

  # Looks from a thread of its own whether a callback holds the loop, and logs its stack. C code
  # that keeps the interpreter's lock keeps this thread waiting too; that is said afterwards.
  class StallDetector
    LIMIT_S = 0.25
    LOOKS_PER_LIMIT = 4
    # How long Ruby code that computes may keep this thread waiting: a turn of each thread.
    TURN_S = 0.2
    STACK_LINES = 12
    # A program that stalls all the time does not fill its log.
    LOG_EVERY_S = 1

    def initialize(pulse, limit: LIMIT_S, log: NeverBlock.method(:log))
      @pulse = pulse
      @limit = limit
      @log = log
      @logged_at = -LOG_EVERY_S
      @stalls = 0
    end

    attr_reader :stalls

    def start
      @thread = Thread.new do
        Thread.current.name = "neverblock stall detector"
        watch
      end
      self
    end

    def stop = @thread&.kill

    private

    def watch
      seen = @pulse.beats
      since = looked = Timers.now
      loop do
        sleep @limit / LOOKS_PER_LIMIT
        late = Timers.now - looked - @limit / LOOKS_PER_LIMIT
        looked = Timers.now
        if late > @limit + TURN_S
          say("C code held the interpreter's lock for #{late.round(2)} s; it was near")
        elsif @pulse.resting? || @pulse.beats != seen
          since = looked
          seen = @pulse.beats
        elsif since && looked - since > @limit
          say("one callback holds the reactor since #{(looked - since).round(2)} s, at")
          since = nil
        end
        since = looked if late > @limit + TURN_S
      end
    end

    def say(what)
      @stalls += 1
      return if Timers.now - @logged_at < LOG_EVERY_S

      @logged_at = Timers.now
      stack = (@pulse.thread.backtrace || []).first(STACK_LINES)
      @log.call("#{what} #{stack.join(" < ")}")
    end
  end
end
