# frozen_string_literal: true

module NeverBlock
  # What a streaming body of Rack 3 gets: it reads from the client and writes to it.
  class Stream
    def initialize(connection, answer, raw:)
      @connection = connection
      @answer = answer
      @raw = raw
      @closed = false
    end

    def write(*parts)
      raise IOError, "closed stream" if @closed

      parts.sum do |part|
        part = part.to_s
        @raw ? @answer.write_raw(part) : @answer.write_chunk(part)
        part.bytesize
      end
    end

    def <<(part)
      write(part)
      self
    end

    def flush = self

    # With a protocol of its own (101) it reads what the client sends, else the request's body.
    def read(length = nil, buffer = nil) = source.read(length, buffer)

    def readpartial(length) = source.readpartial(length)

    def gets = source.gets

    def close_read = nil

    def close_write = close

    def close
      @closed = true
      nil
    end

    def closed? = @closed

    private

    def source = @connection.input(raw: @raw)
  end
end
