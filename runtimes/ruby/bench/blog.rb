# frozen_string_literal: true

# The figures of the blog that the gem goes back to, taken again beside its own, which are of 2009:
# "hello world" and a page of the blog, memory over runs of 10,000 requests, and what `extend` costs.
#
#   ruby bench/blog.rb [RUNS]
#
# It needs Debian's thin, ruby-sequel, ruby-erubis, ruby-sqlite3 and apache2-utils.
require "open3"
require_relative "figures"
require_relative "servers"

REQUESTS = 10_000
AT_ONCE = 10
# Runs of so many requests each; the blog went on until memory was flat.
RUNS = Integer(ARGV.fetch(0, 6))
SCRIPT = <<~RUBY
  module BetterHash
    def blabla
    end
  end

  is_extended = ARGV[0] == "extend"
  Hash.include(BetterHash) unless is_extended
  began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  1_000_000.times do
    hash = {}
    hash.extend(BetterHash) if is_extended
  end
  seconds = Process.clock_gettime(Process::CLOCK_MONOTONIC) - began
  kilobytes = File.read("/proc/self/status")[/VmRSS:\\s+(\\d+)/, 1].to_i
  puts "\#{GC.count} collections, \#{seconds.round(1)} s, \#{(kilobytes / 1024.0).round(1)} MB"
RUBY

# Returns the requests per second that ApacheBench says, which the blog used, too.
def requests_per_second(port)
  said, status = Open3.capture2e("ab", "-q", "-n", REQUESTS.to_s, "-c", AT_ONCE.to_s,
                                 "http://127.0.0.1:#{port}/")
  raise "ab failed: #{said}" unless status.success? && said[/Failed requests:\s+0$/]

  Float(said[/Requests per second:\s+([\d.]+)/, 1])
end

puts Figures.about
{ "hello" => ["hi.ru", "7,378/s"], "the page" => ["blog.ru", "1,296/s, 13 to 21 MB"] }
  .each do |what, (application, then_)|
  puts "#{what}: the blog had #{then_}"
  %i[thin neverblock].each do |name|
    server = Servers.public_send(name, "#{__dir__}/#{application}")
    runs = Array.new(RUNS) { [requests_per_second(server.port), Figures.memory(server.pid)] }
    rates, sizes = runs.transpose
    puts "  #{name}: #{Figures.median(rates).round}/s; MB after each #{REQUESTS} requests: " \
         "#{sizes.map { |size| size.round(1) }.join(", ")}"
  end
end
puts "extend: the blog had 351 collections, 9.1 s, 18.7 MB"
puts "  #{Open3.capture2("ruby", "-e", SCRIPT, "extend").first}"
puts "include: the blog had 117 collections, 0.2 s, 2.8 MB"
puts "  #{Open3.capture2("ruby", "-e", SCRIPT, "include").first}"
