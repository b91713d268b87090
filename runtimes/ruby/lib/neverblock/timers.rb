# frozen_string_literal: true

module NeverBlock
  # Blocks to call at a time: a binary heap, in which a cancelled timer stays until it comes up or
  # until such timers are the majority.
  class Timers
    COMPACT_MIN = 64

    class Timer
      attr_reader :at, :block

      def initialize(at, block)
        @at = at
        @block = block
      end

      def cancelled? = @block.nil?

      # A cancelled timer holds on to nothing.
      def clear = @block = nil
    end

    def initialize
      @heap = []
      @cancelled = 0
    end

    def size = @heap.size - @cancelled

    def after(seconds, &block)
      timer = Timer.new(Timers.now + seconds, block)
      @heap << timer
      rise(@heap.size - 1)
      timer
    end

    def cancel(timer)
      return if timer.nil? || timer.cancelled?

      timer.clear
      @cancelled += 1
      compact if @cancelled > COMPACT_MIN && @cancelled * 2 > @heap.size
    end

    # Returns the seconds until the next timer, or nil if there is none.
    def wait(now = Timers.now)
      pop while @heap.first&.cancelled?
      return unless (timer = @heap.first)

      left = timer.at - now
      left.positive? ? left : 0
    end

    # Calls what is due; what that adds has to wait for the next turn. Returns whether anything was.
    def ring(now = Timers.now)
      rang = false
      while (timer = @heap.first) && (timer.cancelled? || timer.at <= now)
        block = timer.block
        pop
        timer.clear
        next unless block

        rang = true
        block.call
      end
      rang
    end

    def self.now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

    private

    def compact
      @heap.delete_if(&:cancelled?)
      @cancelled = 0
      (@heap.size / 2 - 1).downto(0) { |index| sink(index) }
    end

    def pop
      first = @heap.first
      last = @heap.pop
      unless @heap.empty?
        @heap[0] = last
        sink(0)
      end
      @cancelled -= 1 if first.cancelled?
    end

    def rise(index)
      timer = @heap[index]
      while index.positive?
        parent = (index - 1) / 2
        break if @heap[parent].at <= timer.at

        @heap[index] = @heap[parent]
        index = parent
      end
      @heap[index] = timer
    end

    def sink(index)
      timer = @heap[index]
      while (child = 2 * index + 1) < @heap.size
        child += 1 if child + 1 < @heap.size && @heap[child + 1].at < @heap[child].at
        break if @heap[child].at >= timer.at

        @heap[index] = @heap[child]
        index = child
      end
      @heap[index] = timer
    end
  end
end
