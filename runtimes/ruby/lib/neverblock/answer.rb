# frozen_string_literal: true

require_relative "stream"

module NeverBlock
  # Writes one answer of a Rack application to its connection, in the fiber of the request.
  class Answer
    REASONS = Rack::Utils::HTTP_STATUS_CODES.transform_values { |words| " #{words}" }.freeze
    LINES = Hash.new { |_, status| "HTTP/1.1 #{status}#{REASONS[status]}\r\n".b }
    NAME = /\A[!#$%&'*+.^_`|~0-9A-Za-z-]+\z/
    UNSOUND = /[\r\n\0]/
    LAST_CHUNK = "0\r\n\r\n"
    # Fields that mean something to the server, by their names in small letters.
    SPECIAL = %w[content-length transfer-encoding connection date rack.hijack status].freeze
    # How many names are remembered as sound; applications have a few dozen.
    KINDS_MAX = 256
    KINDS = {}

    REASONS.each_key { |status| LINES[status] = LINES[status].freeze }

    # What an application answers that no client could be sent.
    class Unsound < StandardError; end

    class << self
      # Returns what a field of this name is: one of the special ones, one to pass on, or one of
      # Rack's own.
      def kind(name) = KINDS[name] || classify(name)

      # Returns a text that can be joined to others, whatever their encodings.
      def bytes(text) = text.ascii_only? ? text : text.b

      private

      def classify(name)
        kind = SPECIAL.find { |special| special == name.downcase }&.to_sym
        kind ||= name.start_with?("rack.") ? :own : :plain
        raise Unsound, "the name of a field is malformed: #{name.inspect}" unless
          kind != :plain || NAME.match?(name)

        KINDS[name] = kind if KINDS.size < KINDS_MAX
        kind
      end
    end

    attr_reader :keep_alive

    def initialize(connection, env, keep_alive)
      @connection = connection
      @head_only = env["REQUEST_METHOD"] == "HEAD"
      @modern = env["SERVER_PROTOCOL"] == "HTTP/1.1"
      @keep_alive = keep_alive
      @begun = false
      @hijack = nil
      @length = nil
      @coded = false
    end

    # Returns whether the client was sent something, so that no other answer may follow.
    def begun? = @begun

    # Returns the block of an application that writes to the socket itself, if it gave one.
    attr_reader :hijack

    def write(status, headers, body)
      status = status.to_i
      raise Unsound, "there is no status #{status}" if status < 100 || status > 999

      head = compose(status, headers)
      return begin_hijacked(head) if @hijack
      return begin_raw(head, body) if status == 101 && body.respond_to?(:call)

      bodiless = @head_only || status < 200 || status == 204 || status == 304
      bodiless ? finish_bodiless(status, head) : write_body(head, body)
    end

    def write_chunk(part) = part.empty? ? nil : send("#{part.bytesize.to_s(16)}\r\n", part, "\r\n")

    def write_raw(part) = send(part)

    private

    # Returns the head without the fields that say how the body ends.
    def compose(status, headers)
      head = LINES[status].dup
      dated = false
      headers.each do |name, value|
        dated = true if add(head, name.to_s, value) == :date
      end
      head << @connection.server.date_field unless dated
      head
    end

    def add(head, name, value)
      case (kind = Answer.kind(name))
      when :plain then return fields(head, name, value)
      when :own, :status then return
      when :"content-length" then return @length = length_of(value)
      when :"rack.hijack" then return @hijack = value
      when :"transfer-encoding" then @coded = true
      when :connection then return if connection(value)
      end
      fields(head, name, value)
      kind
    end

    # Rack 2 separates several values by newlines, Rack 3 puts them into an array.
    def fields(head, name, value)
      return value.each { |each| field(head, name, each.to_s) } if value.is_a?(Array)

      value = value.to_s
      return field(head, name, value) unless value.include?("\n")

      value.split("\n").each { |each| field(head, name, each) }
    end

    def field(head, name, value)
      value = Answer.bytes(value)
      raise Unsound, "the value of #{name} is malformed" if UNSOUND.match?(value)

      head << name << ": " << value << "\r\n"
    end

    def length_of(value)
      text = value.to_s
      return text.to_i if text.match?(/\A\d+\z/)

      raise Unsound, "the Content-Length is malformed: #{text.inspect}"
    end

    # Returns whether the server says it itself.
    def connection(value)
      words = value.to_s.downcase
      @keep_alive = false if words.include?("close")
      words.include?("close") || words == "keep-alive"
    end

    def finish_bodiless(status, head)
      head << "Content-Length: #{@length}\r\n" if @length && status >= 200 && status != 204
      send(finish(head))
    end

    def begin_hijacked(head)
      head << "Content-Length: #{@length}\r\n" if @length
      # The application that takes over decides when it ends.
      send(head << "\r\n")
    end

    def begin_raw(head, body)
      @keep_alive = false
      send(head << "\r\n")
      body.call(Stream.new(@connection, self, raw: true))
    end

    def write_body(head, body)
      parts = body.respond_to?(:to_ary) ? body.to_ary : nil
      if parts && !@coded
        write_whole(head, parts)
      elsif body.respond_to?(:each)
        write_parts(frame(head), body)
      else
        write_stream(frame(head), body)
      end
    end

    def write_whole(head, parts)
      bytes = parts.size == 1 ? parts.first.bytesize : parts.sum(&:bytesize)
      if @length && @length != bytes
        raise Unsound, "the body has #{bytes} bytes, its Content-Length says #{@length}"
      end

      head << "Content-Length: #{bytes}\r\n"
      finish(head)
      return send(head, *parts) if bytes > Limits::WRITE_JOINED_BYTES_MAX

      parts.each { |part| head << Answer.bytes(part) }
      @begun = true
      @connection.write_text(head)
    end

    # A client of HTTP/1.0 reads to the end of the connection.
    def frame(head)
      if @length
        head << "Content-Length: #{@length}\r\n"
      elsif !@coded && @modern
        @chunked = true
        head << "Transfer-Encoding: chunked\r\n"
      elsif !@coded
        @keep_alive = false
      end
      finish(head)
    end

    # The head goes out with the first part of the body.
    def write_parts(head, body)
      left = @length
      body.each do |part|
        next if part.empty?

        left = take(left, part) if left
        if @chunked
          send(head, "#{part.bytesize.to_s(16)}\r\n", part, "\r\n")
        else
          send(head, part)
        end
        head = ""
      end
      raise Unsound, "the body is shorter than its Content-Length" if left&.positive?

      send(head, @chunked ? LAST_CHUNK : "")
    end

    def take(left, part)
      raise Unsound, "the body is longer than its Content-Length" if part.bytesize > left

      left - part.bytesize
    end

    def write_stream(head, body)
      send(head)
      stream = Stream.new(@connection, self, raw: !@chunked)
      body.call(stream)
      stream.close
      send(LAST_CHUNK) if @chunked
    end

    def finish(head)
      @keep_alive = false if @connection.last?
      if !@keep_alive
        head << "Connection: close\r\n"
      elsif !@modern
        head << "Connection: keep-alive\r\n"
      end
      head << "\r\n"
    end

    def send(*parts)
      @begun = true
      @connection.write(parts)
    end
  end
end
