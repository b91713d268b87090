# frozen_string_literal: true

require_relative "setup"
require "reactor"

class ReactorTest < Case
  # The program as it was published, but for its port.
  ECHO = <<~RUBY
    require 'reactor'
    require 'socket'
    reactor = Reactor::Base.new
    server = TCPServer.new("0.0.0.0",8080)
    reactor.attach(:read, server) do |server|
    conn = server.accept
    conn.write(conn.gets)
    conn.close
    end
    reactor.run # blocking call, will run for ever
  RUBY

  def running(reactor)
    thread = Thread.new { reactor.run }
    yield
  ensure
    reactor.stop
    flunk "the reactor did not stop" unless thread.join(DEADLINE_S)
  end

  def test_the_echo_program_runs_unchanged
    port = Addrinfo.tcp("127.0.0.1", 0).bind { |socket| socket.local_address.ip_port }
    lib = File.expand_path("../lib", __dir__)
    pid = spawn("ruby", "-I", lib, "-e", ECHO.sub("8080", port.to_s))
    3.times do |n|
      socket = eventually("the server") { connect(port) }
      socket.puts "line #{n}"
      assert_equal "line #{n}\n", socket.gets
      assert_nil socket.gets
    end
  ensure
    Process.kill(:KILL, pid)
    Process.wait(pid)
  end

  def connect(port)
    TCPSocket.new("127.0.0.1", port)
  rescue Errno::ECONNREFUSED
    nil
  end

  def test_blocks_are_told_of_reading_and_writing
    reactor = Reactor::Base.new
    reader, writer = IO.pipe
    got = []
    reactor.attach(:write, writer) do |io|
      io.write_nonblock("ping")
      reactor.detach(:write, io)
    end
    reactor.attach(:read, reader) do |io|
      got << io.read_nonblock(16)
      reactor.stop
    end
    Timeout.timeout(DEADLINE_S) { reactor.run }
    assert_equal ["ping"], got
    refute reactor.attached?(:write, writer)
  end

  module Lines
    include Reactor::Handler

    def notify_readable
      @text = (@text || +"") << read_nonblock(1024)
      while (line = @text.slice!(/\A.*\n/))
        receive_line(line.chomp)
      end
    end
  end

  module Upcase
    include Lines

    def receive_line(line) = write("#{line.upcase}\n")
  end

  class Shouter < UNIXSocket
    include Upcase
  end

  def test_handlers_are_chained_by_including_modules
    reactor = Reactor::Base.new
    ours, theirs = Shouter.pair
    ours.attach_to(reactor, :read)
    running(reactor) do
      theirs.write "one\ntw"
      assert_equal "ONE\n", theirs.gets
      theirs.write "o\n"
      assert_equal "TWO\n", theirs.gets
    end
    ours.detach
    refute reactor.attached?(:read, ours)
    assert_equal Shouter, ours.singleton_class.superclass
    assert_empty ours.singleton_class.included_modules - Shouter.included_modules
  end

  def test_an_io_that_cannot_be_told_is_refused
    reactor = Reactor::Base.new
    error = assert_raises(ArgumentError) { reactor.attach(:read, IO.pipe.first) }
    assert_includes error.message, "notify_readable"
    assert_raises(ArgumentError) { reactor.attach(:listen, $stdin) {} }
  end

  def test_timers_ring_in_order_and_can_be_cancelled
    reactor = Reactor::Base.new
    rung = []
    reactor.after(0.03) { rung << :late }
    reactor.after(0.01) { rung << :early }
    gone = reactor.after(0.02) { rung << :cancelled }
    reactor.cancel(gone)
    beats = 0
    beat = reactor.every(0.01) { reactor.cancel(beat) if (beats += 1) == 3 }
    reactor.after(0.1) { reactor.stop }
    Timeout.timeout(DEADLINE_S) { reactor.run }
    assert_equal %i[early late], rung
    assert_equal 3, beats
  end

  def test_a_timer_that_is_always_due_leaves_time_for_the_others
    reactor = Reactor::Base.new
    reader, writer = IO.pipe
    reactor.every(0) { writer.write_nonblock("x", exception: false) }
    reactor.attach(:read, reader) { reactor.stop }
    Timeout.timeout(DEADLINE_S) { reactor.run }
  end

  def test_several_reactors_run_at_once
    got = Queue.new
    reactors = Array.new(3) { Reactor::Base.new }
    pipes = reactors.map do |reactor|
      reader, writer = IO.pipe
      reactor.attach(:read, reader) { |io| got << [reactor, io.read_nonblock(9)] }
      writer
    end
    threads = reactors.map { |reactor| Thread.new { reactor.run } }
    pipes.each_with_index { |writer, n| writer.write n.to_s }
    found = Array.new(3) { got.pop }
    assert_equal reactors.each_with_index.map { |reactor, n| [reactor, n.to_s] }.sort_by(&:last),
                 found.sort_by(&:last)
    reactors.each(&:stop)
    threads.each { |thread| assert thread.join(DEADLINE_S) }
  end

  def test_another_thread_may_attach_while_it_waits
    reactor = Reactor::Base.new
    got = Queue.new
    running(reactor) do
      eventually("waiting") { reactor.running? }
      reader, writer = IO.pipe
      reactor.attach(:read, reader) { |io| got << io.read_nonblock(9) }
      writer.write "x"
      assert_equal "x", Timeout.timeout(DEADLINE_S) { got.pop }
    end
  end

  def test_an_io_that_was_closed_is_forgotten
    reactor = Reactor::Base.new
    reader, = IO.pipe
    reactor.attach(:read, reader) { flunk "it is closed" }
    reader.close
    rung = false
    reactor.after(0.01) { (rung = true) && reactor.stop }
    Timeout.timeout(DEADLINE_S) { reactor.run }
    assert rung
    refute reactor.attached?(:read, reader)
  end

  def test_a_handlers_exception_leaves_run_which_may_be_called_again
    reactor = Reactor::Base.new
    reactor.after(0) { raise "broken" }
    assert_raises(RuntimeError) { reactor.run }
    reactor.after(0.01) { reactor.stop }
    Timeout.timeout(DEADLINE_S) { reactor.run }
  end

  def test_memory_stays_flat_over_many_connections
    reactor = Reactor::Base.new
    server = TCPServer.new("127.0.0.1", 0)
    reactor.attach(:read, server) { |io| io.accept.then { |c| c.write(c.gets) || c.close } }
    running(reactor) do
      counts = Array.new(3) do
        200.times { TCPSocket.open("127.0.0.1", server.addr[1]) { |c| c.puts("x") || c.gets } }
        GC.start
        ObjectSpace.each_object(Class).count
      end
      assert_equal counts[1], counts[2], "a class is built per connection"
    end
  end
end
