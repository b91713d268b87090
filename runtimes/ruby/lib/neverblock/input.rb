# frozen_string_literal: true

require "tempfile"

module NeverBlock
  # The body of a request that has none.
  module NoInput
    class << self
      def read(length = nil, buffer = nil)
        buffer&.clear
        return if length&.positive?

        buffer || +""
      end

      def gets(*) = nil
      def each = self
      def rewind = 0
      def size = 0
      def close = nil
    end
  end

  # The body of a request while it comes in. Reading waits for the client, in the fiber.
  class Input
    # The block returns the next part of the body, or nil at its end.
    def initialize(&source)
      @source = source
      @buffer = String.new
      @ended = false
    end

    # Returns whether the client has sent all of it and all was taken.
    def ended? = @ended

    def read(length = nil, buffer = nil)
      nil while (length.nil? || @buffer.bytesize < length) && fill
      got = length ? @buffer.slice!(0, length) : @buffer.slice!(0..)
      buffer ? buffer.replace(got) : buffer = got
      buffer unless got.empty? && length&.positive?
    end

    def gets(separator = $/)
      nil while (at = @buffer.index(separator)).nil? && fill
      line = @buffer.slice!(0, at ? at + separator.bytesize : @buffer.bytesize)
      line unless line.empty?
    end

    def each
      while (line = gets)
        yield line
      end
      self
    end

    # Returns what is there, and waits only if that is nothing.
    def readpartial(length)
      fill if @buffer.empty?
      raise EOFError, "end of file reached" if @buffer.empty?

      @buffer.slice!(0, length)
    end

    def close = nil

    private

    # Returns whether there was more.
    def fill
      part = fetch
      return false unless part

      @buffer << part
      true
    end

    def fetch
      return if @ended

      part = @source.call
      @ended = part.nil?
      part
    end
  end

  # The applications of Rack 2 may rewind a body: what was read is kept.
  class RewindableInput < Input
    def initialize(&source)
      super
      @kept = String.new
      @replayed = nil
    end

    def rewind
      @buffer.clear
      @replayed = 0
    end

    def close
      @kept.close! if @kept.is_a?(Tempfile)
      @kept = String.new
    end

    private

    def fetch
      replay || super.tap { |part| keep(part) if part }
    end

    def keep(part)
      if @kept.is_a?(String) && @kept.bytesize + part.bytesize > Limits::REWIND_BYTES_MAX
        file = Tempfile.new("neverblock", binmode: true)
        file.unlink
        file.write(@kept)
        @kept = file
      end
      @kept << part
    end

    def replay
      return unless @replayed

      part = kept_from(@replayed)
      return @replayed = nil if part.nil? || part.empty?

      @replayed += part.bytesize
      part
    end

    def kept_from(offset)
      return @kept.byteslice(offset, Limits::READ_BYTES) if @kept.is_a?(String)

      @kept.seek(offset)
      part = @kept.read(Limits::READ_BYTES)
      @kept.seek(0, IO::SEEK_END)
      part
    end
  end
end
