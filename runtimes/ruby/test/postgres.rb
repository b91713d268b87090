# frozen_string_literal: true

require "etc"
require "fileutils"
require "tmpdir"

require "pg"

# A PostgreSQL server in a directory of its own, reached by a socket there, for one run of tests.
module Postgres
  CONNECTIONS_MAX = 250
  START_TIME_MAX_S = 30

  # Statements wait at it until so many do that it opens: whoever is there at once is counted by the
  # database, however long it takes them to come.
  class Gate
    STATEMENT = "SELECT pg_advisory_xact_lock_shared(7)"
    WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    TIME_MAX_S = 30

    def initialize
      @keeper = PG.connect(host: Postgres.directory, user: "postgres", dbname: "postgres")
      @keeper.exec("SELECT pg_advisory_lock(7)")
    end

    def open_when(count)
      deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + TIME_MAX_S
      until (waiting = @keeper.exec(WAITING).getvalue(0, 0).to_i) == count
        late = Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
        raise "#{waiting} of #{count} wait at once" if late

        sleep 0.02
      end
    ensure
      @keeper.close
    end
  end

  class << self
    def directory
      @directory ||= start
    end

    private

    def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

    def programs
      Dir["/usr/lib/postgresql/*/bin"].max_by { |path| path[/\d+/].to_i } ||
        raise("PostgreSQL is not installed")
    end

    # It refuses to run as root.
    def as_user(*command)
      Process.uid.zero? ? ["runuser", "-u", "postgres", "--", *command] : command
    end

    def call(*command)
      system(*as_user(*command), %i[out err] => "#{@root}/log") ||
        raise("#{command.join(" ")}: #{File.read("#{@root}/log")}")
    end

    def start
      @root = Dir.mktmpdir("neverblock-postgres")
      FileUtils.chown("postgres", nil, @root) if Process.uid.zero?
      call("#{programs}/initdb", "-D", "#{@root}/data", "-U", "postgres", "-A", "trust", "-N",
           "-E", "UTF8", "--locale=C")
      @pid = spawn(*as_user("#{programs}/postgres", "-D", "#{@root}/data", "-k", @root,
                            "-c", "listen_addresses=", "-c", "fsync=off",
                            "-c", "max_connections=#{CONNECTIONS_MAX}"),
                   %i[out err] => "#{@root}/log")
      owner = Process.pid
      at_exit { stop if Process.pid == owner }
      wait_until_ready
      @root
    end

    def wait_until_ready
      deadline = now + START_TIME_MAX_S
      until system("#{programs}/pg_isready", "-q", "-h", @root)
        raise File.read("#{@root}/log") if now > deadline

        sleep 0.05
      end
    end

    # The program itself, not the one that became its user, is told to end at once.
    def stop
      pid = File.read("#{@root}/data/postmaster.pid").to_i
      Process.kill(:QUIT, pid)
      Process.wait(@pid)
      FileUtils.rm_rf(@root)
    end
  end
end
