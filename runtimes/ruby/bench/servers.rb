# frozen_string_literal: true

require "tmpdir"
require_relative "../test/postgres"

# Servers in processes of their own, which end with the bench.
module Servers
  BENCH = __dir__
  START_TIME_MAX_S = 120
  STOP_TIME_MAX_S = 30

  Server = Struct.new(:pid, :port) do
    # What the process and those that it started need together, in MB; what several share counts
    # once.
    def memory
      pids = [pid, *File.read("/proc/#{pid}/task/#{pid}/children").split]
      pids.sum { |each| File.read("/proc/#{each}/smaps_rollup")[/^Pss:\s+(\d+)/, 1].to_i } / 1024.0
    end

    # The processor's seconds that the first process took.
    def processor_s
      ticks = File.read("/proc/#{pid}/stat").split.values_at(13, 14).sum(&:to_f)
      ticks / Etc.sysconf(Etc::SC_CLK_TCK)
    end
  end

  class << self
    def neverblock(application, processes: 1)
      start do |port|
        ["ruby", "#{BENCH}/../exe/neverblock", "-b", "127.0.0.1:#{port}", "-w", processes.to_s,
         "-e", "production", application]
      end
    end

    # Puma's processes with one thread each.
    def puma(application, processes: 1)
      cluster = processes > 1 ? ["-w", processes.to_s, "--preload"] : []
      start do |port|
        ["puma", *cluster, "-t", "1:1", "-b", "tcp://127.0.0.1:#{port}", "-e", "production",
         application]
      end
    end

    # Thin, which answers one request after the other.
    def thin(application)
      start do |port|
        ["thin", "start", "-q", "-R", application, "-a", "127.0.0.1", "-p", port.to_s,
         "-e", "production"]
      end
    end

    # The variables by which the application of Rails finds the database.
    def database(pool)
      ENV.update("PGHOST" => Postgres.directory, "PGUSER" => "postgres",
                 "DATABASE_URL" => "postgresql:///postgres?pool=#{pool}")
    end

    private

    def start
      port = Addrinfo.tcp("127.0.0.1", 0).bind { |socket| socket.local_address.ip_port }
      log = "#{directory}/#{port}.log"
      library = ["#{BENCH}/../lib", *ENV["RUBYLIB"]].join(":")
      pid = spawn({ "RUBYLIB" => library, "RUBYOPT" => "-W0" }, *yield(port), chdir: directory,
                                                                              %i[out err] => log)
      at_exit { stop(pid) }
      wait_until_ready(port, log)
      Server.new(pid, port)
    end

    def directory
      @directory ||= Dir.mktmpdir("neverblock-bench").tap do |path|
        at_exit { FileUtils.rm_rf(path) }
      end
    end

    def wait_until_ready(port, log)
      deadline = Figures.now + START_TIME_MAX_S
      TCPSocket.new("127.0.0.1", port).close
    rescue Errno::ECONNREFUSED
      raise "no server: #{File.read(log)}" if Figures.now > deadline

      sleep(0.1)
      retry
    end

    def stop(pid)
      Process.kill(:TERM, pid)
      deadline = Figures.now + STOP_TIME_MAX_S
      until Process.wait(pid, Process::WNOHANG)
        Process.kill(:KILL, pid) if Figures.now > deadline
        sleep(0.05)
      end
    end
  end
end
