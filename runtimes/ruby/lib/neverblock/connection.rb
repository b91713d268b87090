# frozen_string_literal: true

require "stringio"
require_relative "answer"
require_relative "chunks"
require_relative "head"
require_relative "input"

module NeverBlock
  # One client. The loop reads heads and short bodies, without a fiber; each request is then served
  # in a fiber of its own, in which what is left of its body is read and its answer written.
  class Connection
    CONTINUE = "HTTP/1.1 100 Continue\r\n\r\n"
    NOTHING = String.new.freeze

    attr_reader :server, :deadline

    def initialize(server, socket)
      @server = server
      @scheduler = server.scheduler
      @socket = socket
      @head = Head.new
      # What was read and not yet taken; during a read it is the server's buffer.
      @data = NOTHING
      @state = :head
      @env = nil
      @hijack = method(:hijack)
      @attached = false
      @deadline = Timers.now + Limits::HEAD_TIME_MAX_S
    end

    # Returns whether nothing of a request is here or under way.
    def idle? = @state == :head && @data.empty?

    def closed? = @state == :closed

    # The loop calls it.
    def readable
      buffer = @server.buffer
      case @socket.read_nonblock(Limits::READ_BYTES, buffer, exception: false)
      when :wait_readable then return
      when nil then return close
      end
      # What comes behind a refusal is read and dropped.
      return if @state == :linger

      @data.empty? ? @data = buffer : @data << buffer
      proceed
    rescue IOError, SystemCallError
      close
    ensure
      own_data
    end

    # Takes from the bytes that are here as many requests as can be served at once.
    def proceed
      nil while (@state == :head || @state == :body) && !@data.empty? && step
      update_attachment
    rescue Refusal => refusal
      refuse(refusal)
    rescue ClientGone
      close
    rescue StandardError => error
      NeverBlock.log("a connection ended by #{NeverBlock.describe(error)}")
      close
    end

    # Called when its deadline is over.
    def expire
      if @state == :head && !@data.empty? || @state == :body
        refuse(Refusal.new(408, "the request came too slowly"))
      else
        close
      end
    end

    # The server ends: what waits for a next request, or for the client's end, is closed.
    def stop
      close if idle? || @state == :linger
    end

    # In the fiber of a request: writes all of these parts, and waits for the client meanwhile.
    def write(parts)
      joined(parts).each { |part| write_all(part) unless part.empty? }
    rescue IOError, SystemCallError => error
      raise ClientGone, error.message
    end

    # The same for one text that is not empty.
    def write_text(text)
      write_all(text)
    rescue IOError, SystemCallError => error
      raise ClientGone, error.message
    end

    # In the fiber of a request: its body, or for a protocol of its own what follows the head.
    def input(raw: false)
      return @env["rack.input"] unless raw && @env["rack.input"].equal?(NoInput)

      @raw_input ||= Input.new { receive }
    end

    # Returns whether no request can follow, as the server ends or a body is left that nobody reads.
    def last? = @server.stopping? || unread?

    # Starts what the gate lets through.
    def serve
      @scheduler.serve(self)
    end

    # The fiber of one request.
    def run
      @pace = nil
      @moved = 0
      respond
      @server.after_request
    ensure
      begin
        finish_request
      ensure
        @server.gate.leave
      end
    end

    def close
      return if @state == :closed

      @state = :closed
      release
      @socket.close unless @socket.closed?
    rescue SystemCallError
      nil
    end

    private

    def step
      @state == :head ? take_head : take_body
    end

    # Returns whether it came further.
    def take_head
      # One empty line before a request is tolerated.
      drop_bytes(2) if @env.nil? && @data.start_with?("\r\n")
      begun = !@env.nil? || !@served
      @env ||= @server.new_environment
      taken = @data.empty? ? nil : @head.take(@env, @data)
      if taken.nil?
        @deadline = Timers.now + Limits::HEAD_TIME_MAX_S unless begun
        return false
      end
      drop_bytes(taken)
      @keep_alive = @head.keep_alive?(@env)
      expected = expect
      case (length = @head.length)
      when 0 then dispatch(NoInput)
      when 1..Limits::BODY_BUFFERED_BYTES_MAX then await_body(length, expected)
      else dispatch_streaming(length, expected)
      end
      true
    end

    # Returns whether the client waits before it sends a body.
    def expect
      expected = @env["HTTP_EXPECT"] or return false
      return false if @env["SERVER_PROTOCOL"] == "HTTP/1.0"
      raise Refusal.new(417, "only 100-continue can be expected") unless
        expected.casecmp?("100-continue")

      true
    end

    def await_body(length, expected)
      @state = :body
      @length = length
      now = Timers.now
      @deadline = now + Limits::SLOW_GRACE_S + length / Limits::SLOW_BYTES_PER_S
      @socket.write_nonblock(CONTINUE, exception: false) if expected && @data.empty?
      take_body unless @data.empty?
    end

    def take_body
      return false if @data.bytesize < @length

      dispatch(StringIO.new(take_bytes(@length)))
      true
    end

    def dispatch_streaming(length, expected)
      @continue = expected
      source = length == :chunked ? chunked_source : length_source(length)
      input = Server::INPUT.new(&source)
      @streamed = input
      dispatch(input)
    end

    def length_source(left)
      lambda do
        next if left.zero?

        part = receive
        if part.bytesize > left
          @data = part.byteslice(left..)
          part = part.byteslice(0, left)
        end
        left -= part.bytesize
        part
      end
    end

    def chunked_source
      chunks = Chunks.new
      pending = String.new
      lambda do
        body = nil
        until chunks.done?
          pending << receive
          body = chunks.take(pending)
          break unless body.empty?
        end
        @data = pending if chunks.done? && !pending.empty?
        body unless body.nil? || body.empty?
      end
    end

    # In a fiber: returns the next bytes of the client, or raises.
    def receive
      return take_bytes(@data.bytesize) unless @data.empty?

      continue
      loop do
        case (got = @socket.read_nonblock(Limits::READ_BYTES, exception: false))
        when :wait_readable
          pace.wait(@scheduler, @socket, IO::READABLE) ||
            raise(Refusal.new(408, "the body came too slowly"))
        when nil then raise ClientGone, "the body is incomplete"
        else
          @moved += got.bytesize
          return got
        end
      end
    rescue IOError, SystemCallError => error
      raise ClientGone, error.message
    end

    # A client that waits with its body is told to go on when the application first reads.
    def continue
      return unless @continue

      @continue = false
      write([CONTINUE])
    end

    def dispatch(input)
      @state = :busy
      @deadline = nil
      @env["rack.input"] = input
      @env["REMOTE_ADDR"] = (@remote ||= remote_address)
      @env["rack.hijack"] = @hijack
      @server.gate.enter(self)
    end

    def remote_address
      @socket.remote_address.then { |address| address.ip? ? address.ip_address : "127.0.0.1" }
    rescue SystemCallError => error
      raise ClientGone, error.message
    end

    def respond
      env = @env
      answer = Answer.new(self, env, @keep_alive)
      status, headers, body = @server.app.call(env)
      return if @state == :hijacked

      answer.write(status, headers, body)
      hand_over(answer.hijack) if answer.hijack
      @keep_alive = answer.keep_alive
    rescue ClientGone
      @keep_alive = :gone
    rescue Refusal => refusal
      fail_with(answer, refusal)
    rescue StandardError, NotImplementedError, SystemStackError, NoMemoryError => error
      NeverBlock.log("#{env["REQUEST_METHOD"]} #{env["PATH_INFO"]}: #{NeverBlock.describe(error)}")
      fail_with(answer, Refusal.new(500, "the application failed"))
    ensure
      body.close if body.respond_to?(:close)
      finished(env, status, headers, error)
    end

    # Rack 3 has blocks that are called after the answer.
    def finished(env, status, headers, error)
      env["rack.response_finished"]&.reverse_each do |block|
        block.call(env, status, headers, error)
      end
    end

    # A client that has got the head already learns by the end of the connection that it is not all.
    def fail_with(answer, refusal)
      @keep_alive = :gone
      return if answer&.begun? || @state == :hijacked

      @keep_alive = false
      @socket.write_nonblock(@server.refusal_text(refusal), exception: false)
    rescue IOError, SystemCallError
      @keep_alive = :gone
    end

    def hijack
      @state = :hijacked
      release
      # The application finds these bytes when it reads.
      @socket.ungetbyte(@data) unless @data.empty?
      @env["rack.hijack_io"] = @socket
    end

    def hand_over(block)
      block.call(hijack)
    end

    # What is left of a body is not worth waiting for: the connection ends.
    def finish_request
      return if @state == :hijacked || @state == :closed
      return close if @keep_alive == :gone

      unread = unread?
      @streamed&.close
      @streamed = @raw_input = @env = nil
      return begin_linger if unread || !@keep_alive || @server.stopping?

      await_next
    end

    def unread? = !@streamed.nil? && !@streamed.ended?

    def await_next
      @head.reset
      @state = :head
      @served = true
      @deadline = @scheduler.began + Limits::IDLE_TIME_MAX_S
      # The loop takes what is here already, unless it is about to.
      @scheduler.soon { proceed } unless @attached && @data.empty?
    end

    def refuse(refusal)
      @socket.write_nonblock(@server.refusal_text(refusal), exception: false)
      begin_linger
    rescue IOError, SystemCallError
      close
    end

    # Closing at once would take the answer from a client that is still sending.
    def begin_linger
      @state = :linger
      @deadline = Timers.now + Limits::LINGER_TIME_MAX_S
      @socket.close_write
      update_attachment
    rescue IOError, SystemCallError
      close
    end

    # While a request is under way nothing is read that it does not ask for.
    def update_attachment
      wanted = @state == :head || @state == :body || @state == :linger
      return if wanted == @attached

      @attached = wanted
      wanted ? @scheduler.attach(@socket, self) : @scheduler.detach(@socket)
    end

    def release
      @scheduler.detach(@socket) if @attached
      @attached = false
      @deadline = nil
      @server.forget(self)
    end

    # Takes the first of the bytes that are here.
    def take_bytes(count)
      own_data
      return @data.slice!(0, count) if count < @data.bytesize

      taken = @data
      @data = NOTHING
      taken
    end

    # The same without need for them. Most often they are all that is here.
    def drop_bytes(count)
      return @data = NOTHING if count == @data.bytesize

      own_data
      @data.slice!(0, count)
    end

    # What is left after a read is this connection's own: the buffer is used for the next one.
    def own_data
      @data = String.new << @data if @data.equal?(@server.buffer)
    end

    def joined(parts)
      return parts if parts.size == 1 || parts.sum(&:bytesize) > Limits::WRITE_JOINED_BYTES_MAX

      [parts.each_with_object(String.new) { |part, text| text << Answer.bytes(part) }]
    end

    # How quick the client is counts from the first wait on, with all that moved before.
    def pace
      (@pace ||= Pace.new).tap do |pace|
        pace.moved(@moved)
        @moved = 0
      end
    end

    def write_all(part)
      until (written = @socket.write_nonblock(part, exception: false)) == part.bytesize
        if written == :wait_writable
          pace.wait(@scheduler, @socket, IO::WRITABLE) ||
            raise(ClientGone, "the answer was read too slowly")
        else
          @moved += written
          part = part.byteslice(written..)
        end
      end
      @moved += written
    end
  end
end
