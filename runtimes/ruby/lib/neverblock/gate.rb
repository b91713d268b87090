# frozen_string_literal: true

module NeverBlock
  # Lets so many requests run at a time. The others wait in the order in which they came; as each
  # connection has one request under way, none takes the turns of others.
  class Gate
    attr_reader :running

    def initialize(max)
      @max = max
      @running = 0
      @waiting = []
    end

    def waiting = @waiting.size

    def enter(connection)
      return @waiting << connection if @running >= @max

      @running += 1
      connection.serve
    end

    def leave
      @running -= 1
      return unless @running < @max && (connection = @waiting.shift)

      @running += 1
      connection.serve
    end
  end
end
