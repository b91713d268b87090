# frozen_string_literal: true

require "redis"
require "websocket/driver"
require_relative "work"

# The live feed, with two threads for each client: one reads, one writes.
module Live
  FEED = %r{\A/picture/(\*|\d{1,18})/(likes|added)\z}
  PATTERNS = ["/picture/*/likes", "/picture/*/added"].freeze
  UNSENT_MAX = 1000
  INSTANCE = "#{ENV.fetch("CORTEX_PROCESS", "web")}.#{ENV.fetch("CORTEX_SLOT", "1")}".freeze
  BUS = ENV["CORTEX_BUS_URL"] || ENV["REDIS_URL"] || "redis://127.0.0.1:6379"

  # What a client of the feed is to the driver of its protocol, and to the feeder.
  class Client
    attr_reader :env, :url, :feeds

    def initialize(env, io, feeds)
      @env = env
      @io = io
      @feeds = feeds
      @url = "ws://feed#{env["REQUEST_URI"]}"
      @lock = Mutex.new
      @unsent = SizedQueue.new(UNSENT_MAX)
      @driver = WebSocket::Driver.rack(self, max_length: 1024)
      @driver.on(:close) { finish }
    end

    def start
      @lock.synchronize { @driver.start }
      Thread.new { read_all }
      Thread.new { write_all }
    end

    def write(bytes) = @io.write(bytes)

    # Never waits: a client that reads too slowly is let go.
    def tell(text)
      @unsent.push(text, true)
    rescue ThreadError
      finish
    end

    def close = @lock.synchronize { @driver.close("", 1001) }

    private

    def read_all
      while (bytes = @io.readpartial(4096))
        @lock.synchronize { @driver.parse(bytes) }
      end
    rescue SystemCallError, IOError
      finish
    end

    def write_all
      while (text = @unsent.pop)
        @lock.synchronize { @driver.text(text) }
      end
    rescue SystemCallError, IOError
      finish
    end

    def finish
      Live.gone(self)
      @unsent.close
      @io.close
    rescue IOError
      nil
    end
  end

  @lock = Mutex.new
  @clients = Hash.new { |hash, feed| hash[feed] = {} }
  @all = {}

  class << self
    def start
      @publisher = Redis.new(url: BUS)
      Thread.new { subscribe }
      at_exit { @lock.synchronize { @all.keys }.each(&:close) }
    end

    def there? = @subscribed
    def count = @lock.synchronize { @all.size }

    def publish(channel, news)
      data = { channel: channel, **news, instance: INSTANCE, at: (Time.now.to_f * 1000).to_i }
      @publisher.publish(channel, JSON.generate(data))
    rescue Redis::BaseError => e
      warn "not published: #{e.message}"
    end

    def call(env)
      feeds = Rack::Utils.parse_query(env["QUERY_STRING"])["feed"]
      feeds = [feeds].flatten.uniq
      good = feeds.size <= 50 && feeds.all? { |feed| feed.to_s.match?(FEED) }
      return [400, {}, []] unless good && WebSocket::Driver.websocket?(env)

      connect(Client.new(env, env["rack.hijack"].call, feeds))
      [-1, {}, []]
    end

    def gone(client)
      @lock.synchronize do
        @all.delete(client)
        client.feeds.each do |feed|
          @clients[feed].delete(client)
          @clients.delete(feed) if @clients[feed].empty?
        end
      end
    end

    private

    def connect(client)
      @lock.synchronize do
        @all[client] = true
        client.feeds.each { |feed| @clients[feed][client] = true }
      end
      client.start
      client.tell(JSON.generate(ready: true, instance: INSTANCE))
    end

    def subscribe
      Redis.new(url: BUS, reconnect_attempts: 0).psubscribe(*PATTERNS) do |on|
        on.psubscribe { @subscribed = true }
        on.pmessage { |_, channel, data| push(channel, data) }
      end
    rescue Redis::BaseError => e
      @subscribed = false
      warn "the bus is lost: #{e.message}"
      sleep 0.2
      retry
    end

    def push(channel, data)
      feeds = [channel, "/picture/*/#{channel.split("/").last}"]
      clients = @lock.synchronize { feeds.flat_map { |feed| @clients.fetch(feed, {}).keys } }
      clients.uniq.each { |client| client.tell(data) }
    end
  end
end
