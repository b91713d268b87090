# frozen_string_literal: true

# "Hi!" through bare Rack: requests for each second of the processor that the server took, for one
# process with one thread of neverblock and of Puma.
#
#   ruby bench/hi.rb [ROUNDS]
require_relative "figures"
require_relative "servers"
require_relative "clients"

REQUESTS = 20_000
RATIO_MIN = 1

rounds = Integer(ARGV.fetch(0, 7))
servers = %w[neverblock puma].to_h do |name|
  [name, Servers.public_send(name, "#{__dir__}/hi.ru")]
end
# One client at a time where connections are kept: Puma's only thread waits for the next request of
# the connection that it served last, while others wait.
kinds = {
  "kept" => ->(port) { Clients.keep_asking(port, REQUESTS, connections: 1, at_a_time: 1) },
  "new connections" => ->(port) { (REQUESTS / 20).times { Clients.at_once(port, 20, "/") } }
}
puts Figures.about
kinds.each do |kind, ask|
  rates = Figures.interleaved(rounds, servers.keys) do |name|
    before = servers[name].processor_s
    ask.call(servers[name].port)
    REQUESTS / (servers[name].processor_s - before)
  end
  ratio = Figures.ratio(rates["neverblock"], rates["puma"])
  both = rates.map { |name, all| "#{name} #{Figures.median(all).round}/s" }.join(", ")
  puts "#{kind}: #{both}; ratio #{ratio.round(2)} (owed: #{RATIO_MIN})"
end
