# frozen_string_literal: true

# A server in a thread, and clients that speak bytes.
require_relative "fibers"
require "neverblock/command"

module Serving
  HI = ->(_env) { [200, { "Content-Type" => "text/plain" }, ["Hi!"]] }

  # Serves the application while the block runs, which is given the port. Stalls are not looked
  # for: a machine that is busy with other tests has some.
  def serving(app = HI, stall_limit: nil, **options)
    socket = NeverBlock::Listener.bind("127.0.0.1:0")
    server = NeverBlock::Server.new(app, [socket], stop_time_max: 2, stall_limit:, **options)
    ready = Thread::Queue.new
    thread = Thread.new { server.run { ready << true } }
    ready.pop
    @server = server
    @port = socket.local_address.ip_port
    yield
  ensure
    server&.stop
    unless thread.nil? || thread.join(10)
      flunk "the server did not stop:\n#{thread.backtrace.join("\n")}"
    end
  end

  def connect = TCPSocket.new("127.0.0.1", @port)

  # Sends bytes and reads to the end of the connection.
  def exchange(bytes, finish: false)
    socket = connect
    socket.write(bytes)
    socket.close_write if finish
    read_to_end(socket)
  end

  def read_to_end(socket)
    text = +""
    loop { text << Timeout.timeout(10) { socket.readpartial(65_536) } }
  rescue EOFError, Errno::ECONNRESET
    text.b
  ensure
    socket.close
  end

  def get(path = "/", fields = {})
    fields = { "Host" => "localhost", "Connection" => "close" }.merge(fields)
    request("GET", path, fields)
  end

  def request(method, path, fields, body = "")
    lines = fields.map { |name, value| "#{name}: #{value}\r\n" }.join
    exchange("#{method} #{path} HTTP/1.1\r\n#{lines}\r\n#{body}")
  end

  # Returns status, fields by their small names, and the body with chunks put together.
  def parse(answer)
    head, body = answer.split("\r\n\r\n", 2)
    lines = head.split("\r\n")
    fields = lines.drop(1).to_h { |line| line.split(": ", 2).then { |n, v| [n.downcase, v] } }
    body = NeverBlock::Chunks.new.take(body) if fields["transfer-encoding"] == "chunked"
    [lines.first[/ (\d+)/, 1].to_i, fields, body]
  end

  # Reads one answer with a length from a connection that is kept.
  def read_answer(socket)
    head = socket.gets("\r\n\r\n") or return
    [head[/ (\d+)/, 1].to_i, socket.read(head[/content-length: (\d+)/i, 1].to_i)]
  end
end
