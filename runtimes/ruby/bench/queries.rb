# frozen_string_literal: true

# Requests that each wait half a second in PostgreSQL, through Rails: one process with one thread of
# neverblock, and of Puma, which is asked for fewer, as it serves one after the other.
#
#   ruby bench/queries.rb [ROUNDS]
require_relative "figures"
require_relative "servers"
require_relative "clients"
require "rails/version"

REQUESTS = 200
REQUESTS_OF_PUMA = 10
WAIT_S = 0.5
WITHIN_S = 0.8
RATIO_MIN = 50

rounds = Integer(ARGV.fetch(0, 5))
Servers.database(REQUESTS)
application = "#{__dir__}/rails.ru"
servers = { "neverblock" => Servers.neverblock(application), "puma" => Servers.puma(application) }
counts = { "neverblock" => REQUESTS, "puma" => REQUESTS_OF_PUMA }
# Opens the connections to the database.
cold = servers.to_h { |name, server| [name, Clients.at_once(server.port, counts[name], "/")] }

times = Figures.interleaved(rounds, servers.keys) do |name|
  spent = Clients.at_once(servers[name].port, counts[name], "/?wait=#{WAIT_S}")
  spent * REQUESTS / counts[name]
end
over = Figures.median(times["neverblock"]) - WAIT_S
ratio = Figures.ratio(times["puma"], times["neverblock"])
puts Figures.about("Rails #{Rails::VERSION::STRING}")
puts "#{REQUESTS} requests of pg_sleep(#{WAIT_S}), #{rounds} rounds"
puts "neverblock: #{Figures.median(times["neverblock"]).round(2)} s, #{over.round(2)} s over the " \
     "ideal (owed: #{WITHIN_S}); once before that, to open #{REQUESTS} connections: " \
     "#{cold["neverblock"].round(1)} s"
puts "puma, one thread: #{Figures.median(times["puma"]).round(1)} s, which is " \
     "#{REQUESTS / REQUESTS_OF_PUMA} times what #{REQUESTS_OF_PUMA} requests took"
puts "ratio: #{ratio.round} (owed: #{RATIO_MIN})"
exit(over < WITHIN_S && ratio >= RATIO_MIN)
