# frozen_string_literal: true

module NeverBlock
  # Keeps a number of processes that each serve on the same sockets. One that dies is replaced; if
  # one dies before any has been ready, the application does not start, and neither does this.
  class Workers
    RESTART_EVERY_S = 1
    LOOK_EVERY_S = 0.1
    # What is left of a worker after its own bound is killed.
    STOP_GRACE_S = 2

    # The block serves in a worker, and calls what it is given once it listens.
    def initialize(count, stop_time_max, &serve)
      @count = count
      @stop_time_max = stop_time_max
      @serve = serve
      @pids = {}
      @ready = false
      @stopping = false
    end

    # Returns the status of the process.
    def run
      %w[TERM INT].each { |signal| trap(signal) { stop } }
      @count.times { |number| start(number) }
      until @stopping
        reap
        return give_up if @failed

        look_for_ready
        sleep LOOK_EVERY_S
      end
      end_all
      0
    end

    def stop = @stopping = true

    private

    def start(number)
      reader, writer = IO.pipe
      pid = fork do
        reader.close
        %w[TERM INT].each { |signal| trap(signal, "DEFAULT") }
        @serve.call(-> { writer.write(".") && writer.close })
      end
      writer.close
      @pids[pid] = { number: number, pipe: reader, at: Timers.now }
    end

    def look_for_ready
      return if @ready || !@pids.each_value.any? { |worker| ready?(worker) }

      @ready = true
      NeverBlock.log("#{@count} workers")
    end

    def ready?(worker) = worker[:pipe].read_nonblock(1, exception: false) == "."

    def reap
      while (pid, status = Process.wait2(-1, Process::WNOHANG))
        next unless (worker = @pids.delete(pid))

        @ready ||= ready?(worker)
        worker[:pipe].close
        @failed = true unless @ready
        log_end(worker[:number], status) unless @stopping
        restart(worker) if @ready && !@stopping
      end
    rescue Errno::ECHILD
      nil
    end

    def log_end(number, status)
      NeverBlock.log("worker #{number} ended: #{status.inspect}")
    end

    # A worker that dies at once is not restarted in a circle.
    def restart(worker)
      early = worker[:at] + RESTART_EVERY_S - Timers.now
      sleep early if early.positive?
      start(worker[:number]) unless @stopping
    end

    def give_up
      NeverBlock.log("the application does not start")
      @stopping = true
      end_all
      1
    end

    def end_all
      signal(:TERM)
      deadline = Timers.now + @stop_time_max + STOP_GRACE_S
      until @pids.empty? || Timers.now > deadline
        reap
        sleep LOOK_EVERY_S
      end
      signal(:KILL)
      reap until @pids.empty?
    end

    def signal(name)
      @pids.each_key do |pid|
        Process.kill(name, pid)
      rescue Errno::ESRCH
        nil
      end
    end
  end
end
