# frozen_string_literal: true

require "socket"

module NeverBlock
  # A socket that accepts connections for a server.
  class Listener
    OUT_OF_SOMETHING = [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM, Errno::ENOBUFS].freeze

    # Binds a socket without listening yet: until the application is loaded, and in any process that
    # shares it, clients are refused.
    def self.bind(address)
      return bind_unix(address.delete_prefix("unix://")) if address.start_with?("unix://")

      host, port = parse(address)
      info = Addrinfo.tcp(host, port)
      socket = Socket.new(info.afamily, :STREAM)
      socket.setsockopt(:SOCKET, :REUSEADDR, true)
      socket.bind(info)
      socket
    end

    def self.parse(address)
      match = %r{\A(?:tcp://)?(?:\[([\h:.]+)\]|([^:\[\]/]*))(?::(\d+))?\z}.match(address)
      raise Command::Misuse, "this is no address: #{address}" unless match

      [match[1] || match[2], Integer(match[3] || Command::PORT, 10)]
    end

    def self.bind_unix(path)
      # A file that a killed server left has nobody behind it.
      File.unlink(path) if File.socket?(path) && !answers?(path)
      Socket.new(:UNIX, :STREAM).tap { |socket| socket.bind(Addrinfo.unix(path)) }
    end

    def self.answers?(path)
      UNIXSocket.new(path).close
      true
    rescue SystemCallError
      false
    end

    def initialize(server, socket)
      @server = server
      @bound = socket
      @unix = socket.local_address.unix?
    end

    def port = @unix ? nil : @bound.local_address.ip_port

    def open
      @bound.listen(Limits::BACKLOG)
      @socket = (@unix ? UNIXServer : TCPServer).for_fd(@bound.fileno)
      @socket.autoclose = false
      @server.scheduler.attach(@socket, self)
    end

    # The loop calls it.
    def readable
      Limits::ACCEPTS_PER_TURN.times do
        return pause if @server.full?

        client = @socket.accept_nonblock(exception: false)
        return if client == :wait_readable

        client.setsockopt(:TCP, :NODELAY, true) unless @unix
        @server.add(client)
      end
    rescue *OUT_OF_SOMETHING => error
      NeverBlock.log("no connection can be accepted: #{error.message}")
      pause
      @server.scheduler.timers.after(Limits::ACCEPT_PAUSE_S) { resume }
    rescue SystemCallError
      # The client was gone before it was accepted.
      nil
    end

    def pause = @server.scheduler.detach(@socket)

    def resume
      @server.scheduler.attach(@socket, self) if @socket && !@bound.closed?
    end

    def close
      return if @bound.closed?

      pause if @socket && !@server.scheduler.closed?
      @bound.close
    end
  end
end
