# frozen_string_literal: true

# Quick requests among those that wait two seconds in PostgreSQL, through Rails: four processes of
# neverblock and forty of Puma with one thread each, which take from one socket whoever is free. The
# same requests come to both, at random times.
#
#   ruby bench/mixed.rb [ROUNDS [SLOW_AT_A_TIME]]
require_relative "figures"
require_relative "servers"
require_relative "clients"
require "rails/version"

PROCESSES = { "neverblock" => 4, "puma" => 40 }.freeze
POOL = 40
WARM_REQUESTS = 240
SLOW_S = 2
# One in five is slow.
SLOW_ONE_IN = 5
ROUND_S = 20

# Returns requests with their times, as independent callers send them.
def arrivals(random, slow_at_a_time)
  per_second = slow_at_a_time.to_f / SLOW_S * SLOW_ONE_IN
  at = 0
  requests = []
  while (at += -Math.log(1 - random.rand) / per_second) < ROUND_S
    requests << [at, random.rand(SLOW_ONE_IN).zero? ? "/?wait=#{SLOW_S}" : "/"]
  end
  requests
end

rounds = Integer(ARGV.fetch(0, 3))
slow_at_a_time = Integer(ARGV.fetch(1, 24))
Servers.database(POOL)
servers = PROCESSES.to_h do |name, count|
  [name, Servers.public_send(name, "#{__dir__}/rails.ru", processes: count)]
end
# Every process has served, and has its connections: opening one costs as much as many requests.
servers.each_value do |server|
  3.times { Clients.at_once(server.port, WARM_REQUESTS, "/?wait=0.5") }
end

schedules = Array.new(rounds) { |seed| arrivals(Random.new(seed), slow_at_a_time) }
results = Figures.interleaved(rounds, servers.keys) do |name, round|
  requests = schedules[round]
  spent = Clients.at_times(servers[name].port, requests)
  spent.zip(requests).partition { |_, (_, path)| path == "/" }
       .map { |kind| kind.map(&:first) }
end

puts Figures.about("Rails #{Rails::VERSION::STRING}")
per_second = schedules.sum(&:size) / rounds / ROUND_S
puts "#{rounds} rounds of #{ROUND_S} s, #{per_second} requests/s, of which one in #{SLOW_ONE_IN} " \
     "waits #{SLOW_S} s: #{slow_at_a_time} at a time"
tails = results.to_h do |name, all|
  quick = all.map { |kinds| Figures.percentile(kinds[0], 0.99) * 1000 }
  slow = all.map { |kinds| (Figures.percentile(kinds[1], 0.99) - SLOW_S) * 1000 }
  puts "#{name}, #{PROCESSES[name]} processes: p99 of quick requests " \
       "#{Figures.median(quick).round(1)} ms, of slow ones #{SLOW_S} s and " \
       "#{Figures.median(slow).round(1)} ms; #{servers[name].memory.round} MB"
  [name, quick]
end
ratio = Figures.ratio(tails["neverblock"], tails["puma"])
puts "p99 of quick requests, neverblock's over the other: #{ratio.round(2)}"
