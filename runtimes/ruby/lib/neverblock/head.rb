# frozen_string_literal: true

require "puma/puma_http11"

module NeverBlock
  # The head of one request, as its bytes come in, by Puma's parser in C. What that leaves open is
  # decided here: how the body is framed, and for whom the request is.
  class Head
    HOST = /\A(?:[\w.-]+|\[[\h:.]+\])(?::(\d{1,5}))?\z/
    ABSOLUTE = %r{\Ahttp://([^/?]+)(?:(/[^?]*)(?:\?(.*))?)?\z}i
    # What has to be encoded in an address; parsers differ over it.
    UNSOUND = /[^!-~]|\\/
    LENGTH = /\A\d{1,#{Limits::LENGTH_DIGITS_MAX}}\z/
    VERSIONS = ["HTTP/1.1", "HTTP/1.0"].freeze
    URI_TOO_LONG = /REQUEST_URI|QUERY_STRING|REQUEST_PATH|FRAGMENT/

    # An older parser would let a field pass for another.
    probe = {}
    Puma::HttpParser.new.execute(probe, +"GET / HTTP/1.1\r\nA_B: c\r\n\r\n", 0)
    raise LoadError, "neverblock needs Puma 5.6.8, or Debian's 5.6.5" if probe.key?("HTTP_A_B")

    # The length of the body: a number of bytes, or `:chunked`.
    attr_reader :length

    def initialize
      @parser = Puma::HttpParser.new
      reset
    end

    def reset
      @parser.reset
      @read = 0
      @length = 0
    end

    # Fills the environment; returns the length of the head once it is whole.
    def take(env, data)
      # The parser takes it for a mistake when nothing new is there.
      return if @read == data.bytesize

      @read = @parser.execute(env, data, @read)
      unless @parser.finished?
        raise Refusal.new(431, "the head is too large") if data.bytesize > Limits::HEAD_BYTES_MAX

        return
      end
      raise Refusal.new(431, "the head is too large") if @read > Limits::HEAD_BYTES_MAX

      finish(env, data.bytesize == @read ? data : data.byteslice(0, @read))
      @read
    rescue Puma::HttpParserError => error
      raise refusal(error.message)
    end

    def keep_alive?(env)
      connection = env["HTTP_CONNECTION"]
      if env["SERVER_PROTOCOL"] == "HTTP/1.1"
        connection.nil? || !connection.match?(/(?:\A|,)\s*close\s*(?:,|\z)/i)
      else
        !connection.nil? && connection.match?(/(?:\A|,)\s*keep-alive\s*(?:,|\z)/i)
      end
    end

    private

    # What the client sees of the parser's words.
    def refusal(message)
      return Refusal.new(400, "the request is malformed") unless message.include?("longer than")

      message.match?(URI_TOO_LONG) ? Refusal.new(414, "the address is too long")
                                   : Refusal.new(431, "a field is too large")
    end

    def finish(env, head)
      # Puma 6 has it under the name of CGI, before that it had one of its own.
      version = env["SERVER_PROTOCOL"] ||= env["HTTP_VERSION"]
      raise Refusal.new(505, "HTTP/1.1 is spoken here") unless VERSIONS.include?(version)
      fields = head.count("\n") - 2
      raise Refusal.new(431, "there are too many fields") if fields > Limits::FIELDS_MAX

      drop_ambiguous(env) if head.include?(",")
      direct(env)
      frame(env, version)
    end

    # Fields with an underscore would pass for those with a hyphen; the parser makes a comma of it.
    def drop_ambiguous(env)
      env.delete_if { |key, _| key.include?(",") }
    end

    def direct(env)
      raise Refusal.new(400, "the address has a fragment") if env.key?("FRAGMENT")
      raise Refusal.new(400, "the address is malformed") if UNSOUND.match?(env["REQUEST_URI"])

      name(env)
      if (path = env.delete("REQUEST_PATH"))
        env["PATH_INFO"] = path
      else
        direct_without_path(env)
      end
      env["QUERY_STRING"] ||= ""
    end

    def direct_without_path(env)
      target = env["REQUEST_URI"]
      raise Refusal.new(501, "this is no proxy") if env["REQUEST_METHOD"] == "CONNECT"

      if (match = ABSOLUTE.match(target))
        env["HTTP_HOST"] = match[1]
        name(env)
        env["PATH_INFO"] = match[2] || "/"
        env["QUERY_STRING"] = match[3] || ""
      elsif target == "*" && env["REQUEST_METHOD"] == "OPTIONS"
        env["PATH_INFO"] = ""
      else
        raise Refusal.new(400, "the address is malformed")
      end
    end

    def name(env)
      host = env["HTTP_HOST"]
      if host.nil?
        raise Refusal.new(400, "there is no Host") if env["SERVER_PROTOCOL"] == "HTTP/1.1"

        return
      end
      split_host(host) unless host == @host
      env["SERVER_NAME"] = @name
      env["SERVER_PORT"] = @port unless @port.empty?
    end

    # Most requests of a connection name the same host.
    def split_host(host)
      match = HOST.match(host) || raise(Refusal.new(400, "the Host is malformed"))
      @port = match[1] || ""
      @name = match[1] ? host.byteslice(0, host.bytesize - @port.bytesize - 1) : host
      @host = host
    end

    def frame(env, version)
      length = env["CONTENT_LENGTH"]
      coding = env["HTTP_TRANSFER_ENCODING"]
      if coding
        raise Refusal.new(400, "both a length and chunks") if length
        raise Refusal.new(400, "chunks came with HTTP/1.1") if version == "HTTP/1.0"
        raise Refusal.new(501, "only chunks are understood") unless coding.casecmp?("chunked")

        @length = :chunked
      elsif length
        raise Refusal.new(400, "the length is malformed") unless LENGTH.match?(length)

        @length = length.to_i
      end
    end
  end
end
