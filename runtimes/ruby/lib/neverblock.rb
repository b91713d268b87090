# frozen_string_literal: true

# A Rack server that serves each request in a fiber. Whatever waits in a request (a database, a
# service, a file of a slow client) lets the others go on.
module NeverBlock
  @log = $stderr
  @after_request = []

  class << self
    # Blocks that are called at the end of each request, in its fiber.
    attr_reader :after_request

    # Where to it writes its own lines.
    attr_writer :log

    # One write per line, by which lines of several processes do not mix.
    def log(line)
      @log.write("neverblock[#{Process.pid}]: #{line}\n")
    rescue IOError, SystemCallError
      nil
    end

    def describe(error)
      stack = (error.backtrace || []).first(BACKTRACE_LINES)
      "#{error.class}: #{error.message} at #{stack.join(" < ")}"
    end
  end

  BACKTRACE_LINES = 8
end

require_relative "neverblock/version"
require_relative "neverblock/scheduler"
require_relative "neverblock/fork"
require_relative "neverblock/limits"
require_relative "neverblock/refusal"
