# frozen_string_literal: true

require "rack"
require "time"
require_relative "connection"
require_relative "gate"
require_relative "listener"

module NeverBlock
  # Serves one application in one thread: the connections, and what they share.
  class Server
    INPUT = Gem::Version.new(Rack.release) < Gem::Version.new("3") ? RewindableInput : Input
    # The version of the interface, which Rack 3 no longer has.
    RACK_VERSION = [1, 3].freeze

    attr_reader :app, :scheduler, :gate, :date_field, :buffer

    # The listeners are sockets that are bound, and listen from `run` on.
    def initialize(app, listeners, fibers_max: Limits::FIBERS_MAX, stop_time_max: nil,
                   stall_limit: StallDetector::LIMIT_S, multiprocess: false,
                   connections_max: Limits::CONNECTIONS_MAX)
      @app = app
      @listeners = listeners.map { |socket| Listener.new(self, socket) }
      @gate = Gate.new(fibers_max)
      @stop_time_max = stop_time_max || Limits::STOP_TIME_MAX_S
      @stall_limit = stall_limit
      @connections_max = connections_max
      @connections = {}.compare_by_identity
      @template = template(multiprocess)
      @stopping = false
      @refusals = {}
      # Connections read into it one after the other: most requests are whole and taken at once.
      @buffer = String.new(capacity: Limits::READ_BYTES)
    end

    # Serves in this thread until it is stopped; the block is called once it listens.
    def run
      @scheduler = Scheduler.new
      Fiber.set_scheduler(@scheduler)
      detector = StallDetector.new(@scheduler.pulse, limit: @stall_limit).start if @stall_limit
      tick
      @listeners.each(&:open)
      yield self if block_given?
      @scheduler.run { over? }
    ensure
      detector&.stop
      @listeners.each(&:close)
      @connections.each_key(&:close)
      @scheduler&.abandon
      Fiber.set_scheduler(nil)
    end

    # Ends when what is under way is finished, or when it took too long. Signal handlers and other
    # threads may call it.
    def stop
      @stop_asked = true
      @scheduler&.wakeup
    end

    def stopping? = @stopping

    # The blocks of other libraries that are called in a request's fiber at its end.
    def after_request
      NeverBlock.after_request.each(&:call)
    end

    def new_environment = @template.dup

    def add(socket)
      connection = Connection.new(self, socket)
      @connections[connection] = true
      connection.proceed
    end

    def forget(connection)
      @connections.delete(connection)
      @listeners.each(&:resume) if @connections.size == @connections_max - 1
    end

    def full? = @connections.size >= @connections_max

    def connections = @connections.size

    def refusal_text(refusal)
      @refusals[[refusal.status, refusal.message]] ||= begin
        text = "#{refusal.message}\n"
        "#{Answer::LINES[refusal.status]}Content-Type: text/plain\r\n" \
          "Content-Length: #{text.bytesize}\r\nConnection: close\r\n\r\n#{text}"
      end
    end

    private

    def template(multiprocess)
      { "rack.version" => RACK_VERSION, "rack.url_scheme" => "http", "rack.errors" => $stderr,
        "rack.multithread" => true, "rack.multiprocess" => multiprocess, "rack.run_once" => false,
        "rack.hijack?" => true, "SCRIPT_NAME" => "", "SERVER_NAME" => "localhost",
        "SERVER_PORT" => @listeners.filter_map(&:port).first&.to_s || "80",
        "SERVER_SOFTWARE" => "neverblock/#{VERSION}" }
    end

    # Returns whether the loop may end.
    def over?
      begin_stop if @stop_asked && !@stopping
      @stopping && (@connections.empty? || Timers.now > @stop_at)
    end

    def begin_stop
      @stopping = true
      @stop_at = Timers.now + @stop_time_max
      @scheduler.timers.after(@stop_time_max) { @scheduler.soon { nil } }
      @listeners.each(&:close)
      @connections.keys.each(&:stop)
    end

    # Looks after slow clients and the clock.
    def tick
      @date_field = "Date: #{Time.now.httpdate}\r\n"
      now = Timers.now
      late = @connections.each_key.select { |each| each.deadline && each.deadline < now }
      late.each(&:expire)
      @scheduler.timers.after(Limits::SWEEP_EVERY_S) { tick }
    end
  end
end
