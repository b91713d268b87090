# frozen_string_literal: true

require "optparse"
require_relative "../neverblock"
require_relative "integrations"
require_relative "server"
require_relative "workers"

module NeverBlock
  # The command `neverblock [config.ru]`.
  class Command
    PORT = 9292
    CONFIG = "config.ru"

    Options = Struct.new(:addresses, :workers, :environment, :fibers_max, :stop_time_max,
                         :stall_limit, :port, :config, keyword_init: true)

    # What the command line asks for and cannot be had.
    class Misuse < StandardError; end

    # Returns the status of the process.
    def self.run(arguments)
      new(parse(arguments)).run
    rescue OptionParser::ParseError, Misuse => error
      $stderr.puts "neverblock: #{error.message}; see neverblock --help"
      2
    end

    def self.parse(arguments)
      options = Options.new(addresses: [], workers: Integer(ENV.fetch("WEB_CONCURRENCY", 1)),
                            environment: ENV["RACK_ENV"] || ENV["RAILS_ENV"] || "development",
                            fibers_max: Limits::FIBERS_MAX, stall_limit: StallDetector::LIMIT_S,
                            stop_time_max: Limits::STOP_TIME_MAX_S,
                            port: Integer(ENV.fetch("PORT", PORT)))
      rest = parser(options).parse(arguments)
      raise Misuse, "one file is served, not #{rest.join(", ")}" if rest.size > 1
      raise Misuse, "there must be a worker" if options.workers < 1
      raise Misuse, "there must be a fiber" if options.fibers_max < 1

      options.config = rest.first || CONFIG
      options.addresses << "tcp://0.0.0.0:#{options.port}" if options.addresses.empty?
      options
    end

    def self.parser(options)
      OptionParser.new do |on|
        on.banner = "Usage: neverblock [OPTIONS] [config.ru]"
        on.on("-b", "--bind ADDRESS", "tcp://HOST:PORT or unix://PATH, several times") do |address|
          options.addresses << address
        end
        on.on("-p", "--port PORT", Integer,
              "on every address (default: $PORT or #{PORT})") do |port|
          options.port = port
        end
        on.on("-w", "--workers COUNT", Integer, "processes, one per core (default: 1)") do |count|
          options.workers = count
        end
        on.on("-e", "--environment NAME", "RACK_ENV and RAILS_ENV") do |name|
          options.environment = name
        end
        limits(on, options)
        on.on("-v", "--version") { puts("neverblock #{VERSION}") || exit }
      end
    end

    def self.limits(on, options)
      on.on("--fibers COUNT", Integer,
            "requests at a time in each process (default: #{Limits::FIBERS_MAX})") do |count|
        options.fibers_max = count
      end
      on.on("--stop-time SECONDS", Float,
            "for what is under way at the end (default: #{Limits::STOP_TIME_MAX_S})") do |seconds|
        options.stop_time_max = seconds
      end
      on.on("--stall-limit SECONDS", Float,
            "a callback that holds the reactor longer is logged; 0 for never " \
            "(default: #{StallDetector::LIMIT_S})") do |seconds|
        options.stall_limit = seconds
      end
    end

    def initialize(options, app: nil)
      @options = options
      @app = app
    end

    # Returns the status of the process.
    def run
      unless @app || File.exist?(@options.config)
        raise Misuse, "there is no #{@options.config} in #{Dir.pwd}"
      end

      ENV["RACK_ENV"] = ENV["RAILS_ENV"] = @options.environment
      raise_descriptor_limit
      sockets = @options.addresses.map { |address| Listener.bind(address) }
      return work(sockets) if
        @options.workers > 1

      serve(sockets) { say_where(sockets) }
      0
    rescue SystemCallError => error
      $stderr.puts "neverblock: #{@options.addresses.join(", ")}: #{error.message}"
      1
    end

    # Ends `run`, as a signal does; what started it by its handler may call it at any time.
    def stop = (@workers || @server)&.stop

    private

    def work(sockets)
      @workers = Workers.new(@options.workers, @options.stop_time_max) do |ready|
        @workers = nil
        serve(sockets, ready)
      end
      @workers.run
    end

    # Loads the application before a client can connect: a broken one never looks ready.
    def serve(sockets, ready = nil)
      app = @app || load_app
      limit = @options.stall_limit
      @server = Server.new(app, sockets, fibers_max: @options.fibers_max,
                                         stop_time_max: @options.stop_time_max,
                                         stall_limit: limit.zero? ? nil : limit,
                                         multiprocess: @options.workers > 1)
      Integrations.install
      stop_by_signals(@server)
      @server.run { ready ? ready.call : yield }
    end

    def load_app
      app, = Rack::Builder.parse_file(@options.config)
      app
    end

    # The second signal ends it at once.
    def stop_by_signals(server)
      %w[TERM INT].each do |signal|
        asked = false
        trap(signal) do
          exit!(1) if asked && signal == "INT"
          asked = true
          server.stop
        end
      end
    end

    def say_where(sockets)
      places = sockets.map { |socket| socket.local_address.inspect_sockaddr }
      NeverBlock.log("listens on #{places.join(", ")} (#{@options.environment})")
    end

    # Each connection needs a descriptor.
    def raise_descriptor_limit
      soft, hard = Process.getrlimit(:NOFILE)
      Process.setrlimit(:NOFILE, [hard, Limits::CONNECTIONS_MAX * 2].min, hard) if
        soft < [hard, Limits::CONNECTIONS_MAX * 2].min
    rescue SystemCallError
      nil
    end
  end
end
