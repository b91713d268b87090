# frozen_string_literal: true

require_relative "limits"
require_relative "refusal"

module NeverBlock
  # Takes chunks apart: bytes go in as they come, and the body comes out.
  class Chunks
    SIZE = /\A(\h+)(?:[ \t]*;[^\r\n\0]*)?\z/
    TRAILER = /\A[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*\z/

    def initialize
      @state = :size
      @left = 0
      @trailer_bytes = @trailers = 0
    end

    def done? = @state == :done

    # Returns the part of the body that these bytes hold, and removes from them what it took.
    def take(data)
      body = String.new
      nil while !data.empty? && !done? && step(data, body)
      body
    end

    private

    # Returns whether it came further.
    def step(data, body)
      case @state
      when :size then take_size(data)
      when :body then take_body(data, body)
      when :end then take_end(data)
      when :trailers then take_trailer(data)
      end
    end

    def take_size(data)
      return false unless (line = line(data, Limits::CHUNK_LINE_BYTES_MAX))

      digits = SIZE.match(line)&.[](1)
      refuse("the size of a chunk is malformed") unless digits
      refuse("a chunk is too large") if digits.size > Limits::LENGTH_DIGITS_MAX

      @left = digits.hex
      @state = @left.zero? ? :trailers : :body
      true
    end

    def take_body(data, body)
      part = data.slice!(0, @left)
      body << part
      @left -= part.bytesize
      @state = :end if @left.zero?
      true
    end

    def take_end(data)
      refuse("a chunk is longer than its size") unless "\r\n".start_with?(data.byteslice(0, 2))
      return false if data.bytesize < 2

      data.slice!(0, 2)
      @state = :size
      true
    end

    # Trailers are read and dropped: no application of Rack's can be told of them.
    def take_trailer(data)
      return false unless (line = line(data, Limits::TRAILER_BYTES_MAX - @trailer_bytes))

      @trailer_bytes += line.bytesize + 2
      if line.empty?
        @state = :done
      elsif !TRAILER.match?(line)
        refuse("a trailer is malformed")
      elsif (@trailers += 1) > Limits::FIELDS_MAX
        refuse("there are too many trailers")
      end
      true
    end

    # Returns a line without its end, or nil if it is not whole.
    def line(data, bytes_max)
      at = data.index("\n")
      refuse("a line of a chunked body is too long") if (at || data.bytesize) > bytes_max
      return unless at

      refuse("a line of a chunked body ends without a carriage return") if
        at.zero? || data.getbyte(at - 1) != 13
      data.slice!(0, at + 1).chomp("\r\n")
    end

    def refuse(why) = raise(Refusal.new(400, why))
  end
end
