# frozen_string_literal: true

# The work that a measurement asks of each server, here as a Rack application: written once, for
# threads and for fibers.
require "net/http"
require "pg"

CPU_STEPS = Integer(ENV.fetch("CPU_STEPS"))
QUERY = "SELECT pg_sleep(#{Float(ENV.fetch("QUERY_SECONDS"))})"
REMOTE = URI(ENV.fetch("REMOTE_URL"))
TEXT = { "content-type" => "text/plain" }.freeze

# As many connections to the database as there may be, each made when it is first wanted.
CONNECTIONS = Thread::Queue.new
Integer(ENV.fetch("QUERIES_MAX")).times { CONNECTIONS << nil }

def query
  connection = CONNECTIONS.pop
  connection ||= PG.connect(ENV.fetch("DATABASE_URL"))
  connection.exec(QUERY)
  "done\n"
ensure
  CONNECTIONS << connection
end

# The same sum in each language, within 32 bits.
def compute
  sum = 0
  CPU_STEPS.times { |step| sum = ((sum * 31) + step) & 0xffffffff }
  "#{sum}\n"
end

def answer(path)
  case path
  when "/short" then "Hi!\n"
  when "/query" then query
  when "/remote" then Net::HTTP.get(REMOTE)
  when "/cpu" then compute
  end
end

run(lambda do |env|
  body = answer(env["PATH_INFO"])
  body ? [200, TEXT.merge("content-length" => body.bytesize.to_s), [body]] : [404, TEXT.dup, []]
end)
