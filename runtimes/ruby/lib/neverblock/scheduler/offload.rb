# frozen_string_literal: true

module NeverBlock
  # Threads for what no selector can wait for, such as the system's look-up of names. They are
  # started as needed and bounded; what is over that waits for its turn.
  class Offload
    THREADS_MAX = 16

    def initialize(threads_max = THREADS_MAX)
      @threads_max = threads_max
      @jobs = Thread::Queue.new
      @threads = []
      @pid = Process.pid
    end

    # Calls the block in a thread; the fiber waits for what it returns or raises.
    def call(&block)
      answer = Thread::Queue.new
      after_fork
      @jobs << [block, answer]
      start_thread if @jobs.num_waiting.zero? && @threads.size < @threads_max
      outcome, value = answer.pop
      raise value if outcome == :raised

      value
    end

    private

    # Threads do not survive a fork.
    def after_fork
      return if @pid == Process.pid

      initialize(@threads_max)
    end

    def start_thread
      @threads << Thread.new do
        Thread.current.name = "neverblock offload"
        Thread.current.report_on_exception = false
        loop do
          block, answer = @jobs.pop
          answer << run(block)
        end
      end
    end

    def run(block)
      [:returned, block.call]
    rescue Exception => error # rubocop:disable Lint/RescueException
      [:raised, error]
    end
  end
end
