# frozen_string_literal: true

require_relative "setup"
require_relative "serving"

# Clients that are slow, broken or hostile: each is answered clearly or given up, and others go on.
class HostileTest < Case
  include Fibers
  include Serving

  CORPUS = File.expand_path("../../../crates/parts/router/src/tests/corpus/requests", __dir__)
  # The router has no application for a request without a host, and keeps TRACE from all of them.
  SERVED = %w[host-missing-http-1.0 method-trace].freeze

  ECHO = ->(env) { [200, {}, [env["rack.input"].read]] }

  def with_limits(limits)
    old = limits.keys.to_h { |name| [name, NeverBlock::Limits.const_get(name)] }
    set(limits)
    yield
  ensure
    set(old)
  end

  def set(limits)
    limits.each do |name, value|
      NeverBlock::Limits.send(:remove_const, name)
      NeverBlock::Limits.const_set(name, value)
    end
  end

  # Returns the bytes that one case sends and the words of what the router answers.
  def read_case(path)
    lines = File.readlines(path, chomp: true)
    bytes = lines.filter_map { |line| line[/\A> ?(.*)/m, 1] }.map { |text| unescape(text) }.join
    [bytes.b, lines.find { |line| line.start_with?("= ") }.split.drop(1)]
  end

  def unescape(text)
    text.b.gsub(/\\(?:x(\h\h)|\*(\d+);(.*?);|(.))/mn) do
      if $1 then $1.hex.chr
      elsif $2 then unescape($3) * $2.to_i
      else { "r" => "\r", "n" => "\n", "t" => "\t", "\\" => "\\" }.fetch($4)
      end
    end
  end

  def test_the_corpus_of_the_router_never_kills_the_server_and_what_that_refuses_is_refused
    paths = Dir[File.join(CORPUS, "*.txt")].sort
    assert_operator paths.size, :>, 300
    laxer = []
    with_limits(SLOW_GRACE_S: 1, HEAD_TIME_MAX_S: 1, LINGER_TIME_MAX_S: 0.2) do
      log = logged do
        serving(ECHO) do
          paths.each do |path|
            bytes, words = read_case(path)
            answer = exchange(bytes, finish: true)
            statuses = answer.scan(%r{^HTTP/1.1 (\d+) }n).flatten
            flunk "#{path}: #{answer}" if statuses.any? { |status| status == "500" }
            refused = words.first.to_i.between?(400, 499) && words.include?("closed")
            next unless refused && statuses.first == "200"

            laxer << "#{File.basename(path, ".txt")} #{words.join(" ")}: #{statuses.join(" ")}"
          end
          assert_equal 200, parse(get)[0]
        end
      end
      assert_empty log
    end
    assert_empty laxer.reject { |text| SERVED.include?(text.split.first) }
  end

  def test_random_bytes_and_broken_requests_never_kill_it
    random = Random.new(11)
    sound = "POST /a?b=c HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" \
            "4\r\nabcd\r\n0\r\n\r\n"
    with_limits(LINGER_TIME_MAX_S: 0.1) do
      log = logged do
        serving(ECHO) do
          300.times do |n|
            bytes = sound.b
            bytes = random.bytes(random.rand(1..300)) if n % 3 == 0
            random.rand(1..4).times { bytes.setbyte(random.rand(bytes.bytesize), random.rand(256)) }
            exchange(bytes, finish: true)
          end
          assert_equal 200, parse(get)[0]
          eventually("all gone") { @server.connections.zero? }
        end
      end
      assert_empty log
    end
  end

  def test_refusals_say_what_is_wrong
    serving(ECHO) do
      {
        "GET / HTTP/1.1\r\n\r\n" => 400,
        "GET / HTTP/1.1\r\nHost: a b\r\n\r\n" => 400,
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" => 400,
        "GET / HTTP/2.0\r\nHost: a\r\n\r\n" => 505,
        "GET /#{"a" * 20_000} HTTP/1.1\r\nHost: a\r\n\r\n" => 414,
        "GET / HTTP/1.1\r\nHost: a\r\nX: #{"a" * 90_000}\r\n\r\n" => 431,
        "GET / HTTP/1.1\r\nHost: a\r\n#{(0..200).map { |n| "X#{n}: y\r\n" }.join}\r\n" => 431,
        "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n" =>
          400,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n" => 400,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n" => 400,
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n" => 501,
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" => 400,
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc" => 400,
        "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n" => 501,
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" => 400
      }.each do |bytes, status|
        answer = exchange(bytes)
        assert_equal status, parse(answer)[0], bytes[0, 100]
        assert_includes answer, "Connection: close"
      end
    end
  end

  def test_slow_heads_and_bodies_are_answered_408
    with_limits(HEAD_TIME_MAX_S: 0.3, SLOW_GRACE_S: 0.3, SWEEP_EVERY_S: 0.05,
                LINGER_TIME_MAX_S: 0.1) do
      serving(ECHO) do
        ["GET / HTTP/1.1\r\nHost:", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc",
         "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc"].each do |bytes|
          assert_equal 408, parse(exchange(bytes))[0], bytes
        end
        assert_empty exchange("")
      end
    end
  end

  def test_a_client_that_trickles_is_given_up_and_one_at_speed_is_not
    with_limits(SLOW_GRACE_S: 0.3, SLOW_BYTES_PER_S: 100, SWEEP_EVERY_S: 0.05) do
      serving(ECHO) do
        head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n" \
               "Transfer-Encoding: chunked\r\n\r\n"
        slow, steady = connect, connect
        [slow, steady].each { |socket| socket.write(head) }
        threads = [[slow, 1], [steady, 30]].map do |socket, bytes|
          Thread.new do
            8.times { socket.write("#{bytes.to_s(16)}\r\n#{"x" * bytes}\r\n") && sleep(0.1) }
            socket.write("0\r\n\r\n")
          rescue SystemCallError
            nil
          end
        end
        threads.each(&:join)
        assert_equal [408, 200], [slow, steady].map { |socket| parse(read_to_end(socket))[0] }
      end
    end
  end

  def test_a_client_that_does_not_read_is_given_up_while_others_go_on
    gone = Thread::Queue.new
    body = Class.new do
      define_method(:each) { |&block| 1000.times { block.call("x" * 100_000) } }
      define_method(:close) { gone << true }
    end
    with_limits(SLOW_GRACE_S: 0.3, SLOW_BYTES_PER_S: 1_000_000_000) do
      serving(->(env) { env["PATH_INFO"] == "/large" ? [200, {}, body.new] : HI.call(env) }) do
        socket = connect
        socket.write("GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        assert_equal 200, parse(get)[0]
        assert Timeout.timeout(5) { gone.pop }
        eventually("given up") { @server.connections.zero? }
      end
    end
  end

  def test_keeping_a_connection_idle_ends_it_without_a_word
    with_limits(IDLE_TIME_MAX_S: 0.2, SWEEP_EVERY_S: 0.05) do
      serving do
        socket = connect
        socket.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert_equal 200, read_answer(socket)[0]
        assert_nil Timeout.timeout(5) { socket.read(1) }
      end
    end
  end

  def test_a_thousand_idle_connections_slow_nobody
    serving do
      idle = Array.new(1000) { connect }
      eventually("all are here") { @server.connections == 1000 }
      spent = timed { 50.times { assert_equal 200, parse(get)[0] } }
      assert_operator spent, :<, 5
      idle.each(&:close)
      eventually("all are gone") { @server.connections.zero? }
    end
  end

  def test_more_connections_than_the_bound_wait_to_be_accepted
    serving(connections_max: 5) do
      idle = Array.new(5) { connect }
      eventually("all are here") { @server.connections == 5 }
      late = connect
      late.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
      refute late.wait_readable(0.1)
      idle.first.close
      assert_equal 200, read_answer(late)[0]
    end
  end

  def test_clients_that_vanish_during_answers_harm_nobody
    app = lambda do |env|
      sleep 0.01
      [200, {}, Enumerator.new { |y| 20.times { y << "x" * 50_000 } }]
    end
    log = logged do
      serving(app) do
        60.times do |n|
          socket = connect
          socket.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
          socket.readpartial(1000) if n.odd?
          socket.setsockopt(:SOCKET, :LINGER, [1, 0].pack("ii"))
          socket.close
        end
        eventually("all are gone") { @server.connections.zero? && @server.gate.running.zero? }
        assert_equal 200, parse(get)[0]
      end
    end
    assert_empty log
  end

  def test_a_client_that_vanishes_with_half_a_body
    error = nil
    app = lambda do |env|
      env["rack.input"].read
    rescue NeverBlock::ClientGone => error
      raise
    end
    serving(app) do
      socket = connect
      socket.write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nabc")
      socket.close
      eventually("noticed") { error }
      eventually("gone") { @server.connections.zero? }
    end
  end
end
