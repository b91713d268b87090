# frozen_string_literal: true

require_relative "setup"
require_relative "serving"
require "rack/lint"

class ServerTest < Case
  include Fibers
  include Serving

  ECHO = lambda do |env|
    [200, {}, ["#{env["REQUEST_METHOD"]} #{env["PATH_INFO"]} #{env["rack.input"].read}"]]
  end

  def test_hi
    serving do
      status, fields, body = parse(get)
      assert_equal [200, "Hi!", "3", "close"],
                   [status, body, fields["content-length"], fields["connection"]]
      assert_in_delta Time.now, Time.httpdate(fields["date"]), 5
    end
  end

  def test_requests_are_served_side_by_side_in_one_thread
    serving(->(_) { sleep(0.3) && [200, {}, [Thread.current.object_id.to_s]] }) do
      spent = timed do
        answers = Array.new(100) { Thread.new { parse(get).last } }.map(&:value)
        assert_equal 1, answers.uniq.size
      end
      assert_in_delta 0.3, spent, 1
    end
  end

  def test_a_connection_is_kept_and_requests_may_come_together
    serving(ECHO) do
      socket = connect
      socket.write("GET /1 HTTP/1.1\r\nHost: a\r\n\r\n")
      assert_equal [200, "GET /1 "], read_answer(socket)
      socket.write("POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" \
                   "GET /3 HTTP/1.1\r\nHost: a\r\n\r\n\r\nPOST /4 HTTP/1.1\r\nHost: a\r\n" \
                   "Transfer-Encoding: chunked\r\n\r\n3\r\nxyz\r\n0\r\n\r\n" \
                   "GET /5 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
      got = Array.new(4) { read_answer(socket).last }
      assert_equal ["POST /2 abc", "GET /3 ", "POST /4 xyz", "GET /5 "], got
      assert_nil socket.read(1)
    end
  end

  def test_requests_of_one_connection_are_answered_in_order_though_they_wait
    waits = { "/slow" => 0.1, "/quick" => 0 }
    serving(->(env) { sleep(waits[env["PATH_INFO"]]) && [200, {}, [env["PATH_INFO"]]] }) do
      socket = connect
      %w[/slow /quick /slow].each { |path| socket.write("GET #{path} HTTP/1.1\r\nHost: a\r\n\r\n") }
      assert_equal %w[/slow /quick /slow], Array.new(3) { read_answer(socket).last }
      # Nothing is read from while a request is under way; then it is again.
      socket.write("GET /quick HTTP/1.1\r\nHost: a\r\n\r\n")
      assert_equal "/quick", read_answer(socket).last
    end
  end

  def test_http_1_0_ends_unless_it_asks
    serving(->(_) { [200, {}, %w[a b].each] }) do
      answer = exchange("GET / HTTP/1.0\r\n\r\n")
      assert answer.end_with?("\r\n\r\nab"), answer
      refute_includes answer, "chunked"
    end
    serving do
      socket = connect
      2.times do
        socket.write("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")
        head = socket.gets("\r\n\r\n")
        assert_includes head, "Connection: keep-alive"
        assert_equal "Hi!", socket.read(3)
      end
    end
  end

  def test_bodies_that_are_enumerated_come_in_chunks_as_they_are_made
    body = Enumerator.new { |y| 3.times { |n| y << "part #{n} " && sleep(0.05) } }
    serving(->(_) { [200, {}, body] }) do
      socket = connect
      socket.write("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
      first = socket.readpartial(999)
      assert first.end_with?("7\r\npart 0 \r\n"), first
      assert_equal "part 0 part 1 part 2 ", parse(first + socket.read).last
    end
  end

  def test_a_body_may_be_a_block_that_writes
    body = ->(stream) { stream << "one " && stream.write("two") && stream.close }
    serving(->(_) { [200, {}, body] }) do
      status, fields, body = parse(get)
      assert_equal [200, "chunked", "one two"], [status, fields["transfer-encoding"], body]
    end
  end

  def test_a_block_may_read_the_request_while_it_answers
    app = lambda do |env|
      shout = lambda do |out|
        while (part = env["rack.input"].gets)
          out << part.upcase
          break if part == "end\n"
        end
      end
      [200, {}, shout]
    end
    serving(app) do
      socket = connect
      socket.write("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n")
      assert socket.gets("\r\n\r\n").start_with?("HTTP/1.1 200")
      assert_equal "4\r\nONE\n\r\n", socket.readpartial(99)
      socket.write("4\r\nend\n\r\n0\r\n\r\n")
      assert_equal "4\r\nEND\n\r\n0\r\n\r\n", socket.gets("0\r\n\r\n")
    end
  end

  def test_a_protocol_of_its_own_by_101
    app = lambda do |_|
      [101, { "Upgrade" => "echo", "Connection" => "Upgrade" },
       ->(stream) { stream << stream.gets.upcase && stream.close }]
    end
    serving(app) do
      fields = "Host: a\r\nUpgrade: echo\r\nConnection: Upgrade\r\n"
      answer = exchange("GET / HTTP/1.1\r\n#{fields}\r\nhello\n")
      assert_match(/\AHTTP\/1.1 101 .*Connection: Upgrade\r\n.*\r\n\r\nHELLO\n\z/m, answer)
    end
  end

  def test_full_and_partial_hijack
    full = lambda do |env|
      io = env["rack.hijack"].call
      io.write("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nmine: #{io.gets}")
      io.close
      [500, {}, ["never sent"]]
    end
    serving(full) do
      answer = exchange("GET / HTTP/1.1\r\nHost: a\r\n\r\nrest\n")
      assert answer.end_with?("\r\n\r\nmine: rest\n"), answer
      eventually("forgotten") { @server.connections.zero? }
    end
    take = ->(io) { io.write("taken") && io.close }
    partial = ->(_) { [200, { "X-A" => "b", "rack.hijack" => take }, []] }
    serving(partial) do
      status, fields, body = parse(get)
      assert_equal [200, "b", "taken"], [status, fields["x-a"], body]
      refute fields.key?("rack.hijack")
    end
  end

  def test_a_hijacked_socket_may_be_used_by_another_thread
    app = lambda do |env|
      io = env["rack.hijack"].call
      Thread.new { sleep(0.02) && io.write("HTTP/1.0 200 OK\r\n\r\nlater") && io.close }
      [200, {}, []]
    end
    serving(app) { assert get.end_with?("\r\n\r\nlater") }
  end

  def test_a_body_that_is_expected_is_asked_for_when_it_is_read
    serving(ECHO) do
      { "Content-Length: 3" => "abc",
        "Transfer-Encoding: chunked" => "3\r\nabc\r\n0\r\n\r\n" }.each do |field, body|
        socket = connect
        socket.write("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n#{field}\r\n\r\n")
        assert_equal "HTTP/1.1 100 Continue\r\n\r\n", socket.gets("\r\n\r\n")
        socket.write(body)
        assert_equal [200, "POST / abc"], read_answer(socket)
      end
    end
    serving(->(_) { [403, {}, ["no"]] }) do
      answer = exchange("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n" \
                        "Transfer-Encoding: chunked\r\n\r\n")
      assert answer.start_with?("HTTP/1.1 403")
      assert_includes answer, "Connection: close"
      assert_equal 417, parse(get("/", "Expect" => "miracles"))[0]
    end
  end

  def test_answers_without_a_body
    app = ->(env) { [env["PATH_INFO"][1..].to_i, { "Content-Type" => "text/plain" }, ["body"]] }
    serving(app) do
      socket = connect
      [["HEAD", 200], ["GET", 204], ["GET", 304], ["HEAD", 404]].each do |method, status|
        socket.write("#{method} /#{status} HTTP/1.1\r\nHost: a\r\n\r\n")
        head = socket.gets("\r\n\r\n")
        assert head.start_with?("HTTP/1.1 #{status} "), head
        refute_includes head, "chunked"
      end
      socket.write("GET /200 HTTP/1.1\r\nHost: a\r\n\r\n")
      assert_equal [200, "body"], read_answer(socket)
    end
    serving(->(_) { [200, { "Content-Length" => "4" }, []] }) do
      answer = request("HEAD", "/", { "Host" => "a", "Connection" => "close" })
      assert_equal "4", parse(answer)[1]["content-length"]
    end
  end

  def test_what_an_application_answers_must_be_sound
    bad = {
      "a field of two lines by a carriage return" => [200, { "X-A" => "b\r\nEvil: c" }, ["x"]],
      "a name with a space" => [200, { "X A" => "b" }, ["x"]],
      "a length that is wrong" => [200, { "Content-Length" => "9" }, ["x"]],
      "a length that is no number" => [200, { "Content-Length" => "-1" }, ["x"]],
      "a status that is none" => [7, {}, ["x"]]
    }
    bad.each do |what, answer|
      log = logged do
        serving(->(_) { answer }) { assert_equal 500, parse(get)[0], what }
      end
      assert_includes log, "Unsound", what
    end
    several = { "Set-Cookie" => "a=1\nb=2", "X" => %w[c d], "status" => "1" }
    serving(->(_) { [200, several, ["x"]] }) do
      answer = get
      ["Set-Cookie: a=1", "Set-Cookie: b=2", "X: c", "X: d"].each do |line|
        assert_includes answer, "#{line}\r\n"
      end
      refute_includes answer, "status"
    end
  end

  def test_a_body_that_breaks_off_ends_the_connection_without_a_last_chunk
    log = logged do
      serving(->(_) { [200, {}, Enumerator.new { |y| (y << "part") && raise("broken") }] }) do
        answer = get
        assert answer.end_with?("part\r\n"), answer
      end
    end
    assert_includes log, "RuntimeError: broken"
  end

  def test_connections_do_not_mix_what_they_send_in_parts
    texts = Array.new(6) { |n| "POST /#{n} HTTP/1.1\r\nHost: a\r\nContent-Length: 40\r\n\r\n" }
    texts = texts.each_with_index.map { |text, n| (text + n.to_s * 40) * 2 }
    serving(ECHO) do
      sockets = texts.map { connect }
      random = Random.new(7)
      places = Array.new(texts.size, 0)
      until (open = places.each_index.select { |n| places[n] < texts[n].size }).empty?
        n = open.sample(random:)
        sockets[n].write(part = texts[n][places[n], random.rand(1..50)])
        places[n] += part.size
        # Some parts come together and some apart.
        sleep(0.001) if random.rand(3).zero?
      end
      sockets.each_with_index do |socket, n|
        2.times { assert_equal [200, "POST /#{n} #{n.to_s * 40}"], read_answer(socket) }
      end
    end
  end

  def test_texts_of_any_encoding_go_out_as_bytes
    fields = { "X-Utf" => "gr\u00fcn", "X-Latin" => "gr\xfcn", "X-Bytes" => "\xff".b }
    bodies = ["\xff\xfe".b, "gr\u00fcn", "gr\u00fcn".encode("UTF-16LE"), "gr\xfcn"]
    [bodies, bodies.each].each do |body|
      serving(->(_) { [200, fields, body] }) do
        status, got, text = parse(get)
        assert_equal 200, status
        assert_equal fields.values.map(&:b), got.values_at("x-utf", "x-latin", "x-bytes")
        assert_equal bodies.map(&:b).join, text
      end
    end
  end

  def test_an_application_that_fails_answers_500_and_others_go_on
    log = logged do
      serving(->(env) { env["PATH_INFO"] == "/" ? [200, {}, []] : raise(NoMethodError, "oops") }) do
        socket = connect
        socket.write("GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
        assert_equal 500, read_answer(socket)[0]
        assert_nil socket.read(1)
        assert_equal 200, parse(get)[0]
      end
    end
    assert_includes log, "GET /x: NoMethodError: oops"
  end

  def test_the_body_is_closed_and_the_end_is_told
    closed = Thread::Queue.new
    body = Class.new do
      define_method(:each) { |&block| block.call("x") }
      define_method(:close) { closed << :body }
    end
    app = lambda do |env|
      env["rack.response_finished"] = [->(*arguments) { closed << arguments[1] }]
      [200, {}, body.new]
    end
    serving(app) { assert_equal [200, :body, 200], [parse(get)[0], closed.pop, closed.pop] }
  end

  def test_requests_over_the_bound_wait_in_their_order
    order = Thread::Queue.new
    most = now_running = 0
    app = lambda do |env|
      most = [most, now_running += 1].max
      order << env["PATH_INFO"]
      sleep 0.02
      now_running -= 1
      [200, {}, []]
    end
    serving(app, fibers_max: 2) do
      sockets = Array.new(8) do |n|
        connect.tap do |socket|
          socket.write("GET /#{n} HTTP/1.1\r\nHost: a\r\n\r\n")
          eventually("request #{n}") { order.size + @server.gate.waiting > n }
        end
      end
      sockets.each { |socket| assert_equal 200, read_answer(socket)[0] }
      assert_equal (0...8).map { |n| "/#{n}" }, Array.new(8) { order.pop }
      assert_equal 2, most
    end
  end

  def test_what_is_under_way_is_finished_at_the_end_and_no_more_begins
    serving(->(_) { sleep(0.3) && [200, {}, ["done"]] }) do
      idle = connect
      busy = connect
      busy.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
      eventually("under way") { @server.gate.running == 1 }
      @server.stop
      assert_nil idle.read(1)
      assert_raises(Errno::ECONNREFUSED) { connect }
      assert_match(/Connection: close.*\r\n\r\ndone\z/m, read_to_end(busy))
    end
  end

  def test_what_takes_too_long_at_the_end_is_dropped
    spent = timed do
      serving(->(_) { sleep }) do
        connect.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        eventually("under way") { @server.gate.running == 1 }
      end
    end
    assert_in_delta 2, spent, 1
  end

  def test_large_bodies_in_and_out
    text = Random.new(1).bytes(3_000_000)
    serving(->(env) { [200, {}, [env["rack.input"].read]] }) do
      parts = text.scan(/.{1,70000}/mn)
      chunks = parts.map { |part| "#{part.bytesize.to_s(16)}\r\n#{part}\r\n" }.join
      fields = { "Host" => "a", "Connection" => "close" }
      one = request("PUT", "/", fields.merge("Content-Length" => text.bytesize), text)
      chunked = fields.merge("Transfer-Encoding" => "chunked")
      two = request("PUT", "/", chunked, "#{chunks}0\r\n\r\n")
      assert_equal [text, text], [one, two].map { |answer| answer.split("\r\n\r\n", 2).last }
    end
  end

  def test_input_may_be_read_in_parts
    serving(lambda { |env|
      input = env["rack.input"]
      got = [input.read(5), input.gets&.size, input.read(0), input.read.size]
      [200, {}, [[*got, input.read(1), input.read].inspect]]
    }) do
      body = "0123456789\n" * 50_000
      fields = { "Host" => "a", "Connection" => "close", "Content-Length" => body.bytesize }
      answer = request("POST", "/", fields, body)
      assert_equal ["01234", 6, "", 549_989, nil, ""].inspect, parse(answer).last
      empty = request("POST", "/", { "Host" => "a", "Connection" => "close" })
      assert_equal [nil, nil, "", 0, nil, ""].inspect, parse(empty).last
    end
  end

  def test_input_may_be_rewound_from_memory_and_from_a_file
    [3, 100].each do |count|
      parts = Array.new(count) { |n| "part #{n}\n" * 500 }
      all = parts.join
      input = NeverBlock::RewindableInput.new { parts.shift }
      assert_equal all[0, 7], input.read(7)
      2.times do
        input.rewind
        assert_equal "part 0\n", input.gets
        assert_equal all.bytesize - 7, input.read.bytesize
        assert input.ended?
      end
      input.rewind
      assert_equal all, input.read
      input.close
    end
    refute NeverBlock::Input.method_defined?(:rewind), "Rack 3 asks whether it can be"
  end

  def test_the_environment
    seen = nil
    serving(->(env) { (seen = env) && [200, {}, []] }) do
      get("/a%20b?c=d&e", "Host" => "example.org:81", "X-One" => "1", "X_One" => "2",
                          "Content-Type" => "text/x")
      assert_equal ["/a%20b", "c=d&e", "example.org", "81", "", "127.0.0.1", "http", "1", "text/x"],
                   seen.values_at("PATH_INFO", "QUERY_STRING", "SERVER_NAME", "SERVER_PORT",
                                  "SCRIPT_NAME", "REMOTE_ADDR", "rack.url_scheme", "HTTP_X_ONE",
                                  "CONTENT_TYPE")
      exchange("GET http://other:82/p?q HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n")
      assert_equal ["/p", "q", "other:82", "82"],
                   seen.values_at("PATH_INFO", "QUERY_STRING", "HTTP_HOST", "SERVER_PORT")
    end
  end

  def test_racks_lint_finds_nothing
    app = lambda do |env|
      text = env["rack.input"].read.to_s
      env["rack.errors"].flush
      headers = { "content-type" => "text/plain", "content-length" => text.bytesize.to_s }
      env["PATH_INFO"] == "/none" ? [204, {}, []] : [200, headers, [text]]
    end
    log = logged do
      serving(Rack::Lint.new(app)) do
        fields = { "Host" => "localhost:1", "Connection" => "close",
                   "Content-Type" => "text/plain" }
        [["GET", "/?a=b", {}, ""], ["POST", "/", { "Content-Length" => 3 }, "abc"],
         ["POST", "/", { "Transfer-Encoding" => "chunked" }, "3\r\nabc\r\n0\r\n\r\n"],
         ["PUT", "/", { "Content-Length" => 100_000 }, "x" * 100_000],
         ["DELETE", "/a/b", { "Host" => "[::1]:80" }, ""],
         ["OPTIONS", "*", {}, ""]].each do |method, path, more, body|
          answer = request(method, path, fields.merge(more), body)
          assert_equal 200, parse(answer)[0], "#{method} #{path}"
        end
        assert_equal 204, parse(get("/none"))[0]
        assert_equal 200, parse(exchange("GET / HTTP/1.0\r\n\r\n"))[0]
      end
    end
    assert_empty log
  end
end
