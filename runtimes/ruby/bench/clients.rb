# frozen_string_literal: true

require "neverblock"

# Clients for a server on this machine.
module Clients
  class << self
    # Sends so many requests at once, and returns the seconds until all are answered.
    def at_once(port, count, path)
      began = Figures.now
      sockets = Array.new(count) { open(port, path) }
      sockets.each { |socket| check(socket.read) }
      Figures.now - began
    end

    # Sends each path at its time, whatever became of those before it. Returns for each how many
    # seconds its answer took.
    def at_times(port, requests)
      Thread.new do
        Fiber.set_scheduler(NeverBlock::Scheduler.new)
        began = Figures.now
        spent = []
        requests.each_with_index do |(at, path), n|
          Fiber.schedule { spent[n] = at_time(port, began + at, path) }
        end
        Fiber.set_scheduler(nil)
        spent
      end.value
    end

    # Sends requests over kept connections, each of which has several under way.
    def keep_asking(port, requests, connections: 20, at_a_time: 8, per_connection: 1000)
      text = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * at_a_time
      (requests / per_connection / connections).times do
        sockets = Array.new(connections) { TCPSocket.new("127.0.0.1", port) }
        (per_connection / at_a_time).times do
          sockets.each { |socket| socket.write(text) }
          sockets.each { |socket| at_a_time.times { read_answer(socket) } }
        end
        sockets.each(&:close)
      end
    end

    private

    def open(port, path)
      socket = TCPSocket.new("127.0.0.1", port)
      socket.write("GET #{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
      socket
    end

    def at_time(port, at, path)
      sleep([at - Figures.now, 0].max)
      socket = open(port, path)
      check(socket.read)
      Figures.now - at
    ensure
      socket&.close
    end

    def check(answer)
      raise "not answered: #{answer[0, 200].inspect}" unless answer.start_with?("HTTP/1.1 200")
    end

    def read_answer(socket)
      head = socket.gets("\r\n\r\n")
      check(head)
      socket.read(head[/content-length: (\d+)/i, 1].to_i)
    end
  end
end
