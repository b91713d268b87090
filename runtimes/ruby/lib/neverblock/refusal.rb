# frozen_string_literal: true

module NeverBlock
  # A request that gets an answer from the server itself, after which its connection ends.
  class Refusal < StandardError
    attr_reader :status

    def initialize(status, message)
      @status = status
      super(message)
    end
  end

  # The client went away in the middle of something.
  class ClientGone < StandardError; end

  # How fast a client is: only the time counts in which it was waited for.
  class Pace
    def initialize(grace: Limits::SLOW_GRACE_S, rate: Limits::SLOW_BYTES_PER_S)
      @grace = grace
      @rate = rate
      @waited = 0.0
      @bytes = 0
    end

    # Returns the seconds that it may still be waited for.
    def left = @grace + @bytes.fdiv(@rate) - @waited

    def moved(bytes) = @bytes += bytes

    # Waits in a fiber until the socket is ready; returns false if the client is too slow.
    def wait(scheduler, socket, events)
      left = self.left
      return false if left <= 0

      started = Timers.now
      ready = scheduler.io_wait(socket, events, left)
      @waited += Timers.now - started
      ready
    end
  end
end
