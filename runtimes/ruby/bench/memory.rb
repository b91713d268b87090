# frozen_string_literal: true

# Memory of a process that answers "Hi!", after 100,000 requests and after 200,000, or 1,000,000.
#
#   ruby bench/memory.rb [--long]
require_relative "figures"
require_relative "servers"
require_relative "clients"

FIRST = 100_000
LAST = ARGV.include?("--long") ? 1_000_000 : 200_000
GROWTH_MAX = 0.05

server = Servers.neverblock("#{__dir__}/hi.ru")
puts Figures.about
began = Figures.now
sizes = (FIRST..LAST).step(FIRST).map do |count|
  Clients.keep_asking(server.port, FIRST)
  size = Figures.memory(server.pid)
  puts "after #{count} requests: #{size.round(2)} MB, #{(Figures.now - began).round} s"
  size
end
growth = sizes.last / sizes.first - 1
puts "growth: #{(growth * 100).round(1)} % (owed: at most #{(GROWTH_MAX * 100).round} %)"
exit(growth <= GROWTH_MAX)
