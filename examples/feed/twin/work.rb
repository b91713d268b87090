# frozen_string_literal: true

require "pg"
require "net/http"
require "open3"
require "json"

# What a request needs: the database, an actor, services of others, the converter. All of it blocks
# its thread.
module Work
  CONNECTIONS = 20
  TIME_MAX_S = 8
  CONVERSIONS_MAX = 2
  MAILBOX_MAX = 10_000

  # A refusal with its status.
  class Refusal < StandardError
    attr_reader :status

    def initialize(status, message)
      @status = status
      super(message)
    end
  end

  @free = Queue.new
  CONNECTIONS.times { @free << nil }
  @turns = Queue.new
  CONVERSIONS_MAX.times { @turns << true }

  class << self
    def with_connection
      connection = @free.pop
      connection = connect if connection.nil? || connection.finished?
      yield connection
    rescue PG::ConnectionBad, PG::UnableToSend
      connection&.close unless connection&.finished?
      connection = nil
      raise
    ensure
      @free << connection
    end

    def query(sql, *values) = with_connection { |c| c.exec_params(sql, values).to_a }

    def transaction
      with_connection do |c|
        c.transaction { yield ->(sql, *values) { c.exec_params(sql, values).to_a } }
      end
    end

    # An actor is a thread and its queue.
    def actor(name, &receive)
      queue = SizedQueue.new(MAILBOX_MAX)
      Thread.new do
        loop { guarded(name) { receive.call(queue.pop) } }
      end
      queue
    end

    def every(seconds, name, &work)
      Thread.new do
        loop do
          guarded(name, &work)
          sleep(seconds)
        end
      end
    end

    def remote(url, body: nil, token: nil)
      uri = URI(url)
      request = (body ? Net::HTTP::Post : Net::HTTP::Get).new(uri)
      request["content-type"] = "application/json"
      request["authorization"] = "Bearer #{token}" if token
      request.body = JSON.generate(body) if body
      http = Net::HTTP.new(uri.host, uri.port)
      http.open_timeout = http.read_timeout = TIME_MAX_S
      answer = http.request(request)
      raise Refusal.new(502, "the other service answered #{answer.code}") if answer.code.to_i >= 400

      JSON.parse(answer.body)
    rescue Timeout::Error
      raise Refusal.new(504, "the other service is too slow")
    rescue SystemCallError, IOError
      raise Refusal.new(502, "the other service cannot be reached")
    end

    def convert(kind, bytes)
      turn = @turns.pop
      limits = %w[-limit memory 128MiB -limit map 256MiB -limit disk 0 -limit width 12KP
                  -limit height 12KP -limit thread 1]
      shape = %w[-auto-orient -strip -resize 960x960> -quality 82 jpeg:-]
      program = ENV.fetch("CONVERT", "convert")
      small, _, status = Open3.capture3(program, *limits, "#{kind}:-[0]", *shape,
                                        stdin_data: bytes, binmode: true)
      good = status.success? && !small.empty?
      good ? small : raise(Refusal.new(422, "this image could not be converted"))
    ensure
      @turns << turn
    end

    private

    def connect
      connection = PG.connect(ENV.fetch("DATABASE_URL"))
      connection.type_map_for_results = PG::BasicTypeMapForResults.new(connection)
      connection
    end

    def guarded(name)
      yield
    rescue StandardError => e
      warn "#{name} failed: #{e.class} #{e.message}"
    end
  end
end
