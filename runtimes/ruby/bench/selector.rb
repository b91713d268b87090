# frozen_string_literal: true

# How dear it is to wait for a socket: pairs of fibers that play ping-pong, under neverblock's
# scheduler, which is over nio4r, and under the least that io-event can be put under.
#
#   ruby bench/selector.rb [ROUNDS]      io-event is found as any gem, or by RUBYLIB
require_relative "figures"
require "neverblock"
require "io/event"
require "io/wait"

PAIRS = 100
PINGS = 500
IDLE = 5000

# No timers, no threads, nothing that is attached without a fiber: only what the game needs.
class LeastOverIOEvent
  def initialize
    @selector = IO::Event::Selector.new(Fiber.current)
    @running = 0
  end

  def fiber(&block)
    @running += 1
    Fiber.new(blocking: false) { block.call && @running -= 1 }.tap(&:transfer)
  end

  def io_wait(io, events, _timeout = nil) = @selector.io_wait(Fiber.current, io, events)

  def kernel_sleep(*) = raise(NotImplementedError)

  def block(*) = raise(NotImplementedError)

  def unblock(*) = raise(NotImplementedError)

  def close
    @selector.select(nil) while @running.positive?
    @selector.close
  end
end

def read_one(io)
  io.wait_readable while io.read_nonblock(1, exception: false) == :wait_readable
  true
end

# Returns the processor's microseconds for a ping and its pong.
def play(scheduler)
  spent = Thread.new do
    Fiber.set_scheduler(scheduler.new)
    PAIRS.times do
      a, b = UNIXSocket.pair
      Fiber.schedule { PINGS.times { a.write_nonblock("x") && read_one(a) } }
      Fiber.schedule { PINGS.times { read_one(b) && b.write_nonblock("x") } }
    end
    Fiber.set_scheduler(nil)
    Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID)
  end.value
  GC.start
  spent * 1e6 / PAIRS / PINGS
end

# Returns the kB that each fiber needs while it waits, which io-event has for each idle client.
def memory_of_idle_fibers
  before = Figures.memory(Process.pid)
  fibers = Array.new(IDLE) { Fiber.new { Fiber.yield }.tap(&:resume) }
  (Figures.memory(Process.pid) - before) * 1024 / fibers.size
end

rounds = Integer(ARGV.fetch(0, 7))
schedulers = { "nio4r" => NeverBlock::Scheduler, "io-event" => LeastOverIOEvent }
puts Figures.about("nio4r #{NIO::VERSION}, io-event #{IO::Event::VERSION}")
puts "a fiber that waits: #{memory_of_idle_fibers.round(1)} kB"
times = Figures.interleaved(rounds, schedulers.keys) { |name| play(schedulers[name]) }
times.each do |name, all|
  puts "#{name}: #{Figures.median(all).round(1)} us for a ping and its pong"
end
puts "neverblock's over the other: #{Figures.ratio(times["nio4r"], times["io-event"]).round(2)}"
