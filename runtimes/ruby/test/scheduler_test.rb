# frozen_string_literal: true

require_relative "setup"
require_relative "fibers"
require "net/http"
require "open3"
require "stringio"

class SchedulerTest < Case
  include Fibers

  def test_fibers_sleep_side_by_side
    asleep = most = 0
    in_fibers do
      200.times do
        Fiber.schedule do
          most = [most, asleep += 1].max
          sleep 0.2
          asleep -= 1
        end
      end
    end
    assert_equal 200, most
  end

  def test_a_started_fiber_runs_at_once_and_its_starter_goes_on_after_it_waits
    order = []
    in_fibers do
      Fiber.schedule do
        order << 1
        sleep 0
        order << 3
      end
      order << 2
    end
    assert_equal [1, 2, 3], order
  end

  def test_the_nested_fiber_of_an_enumerator_may_wait
    got = in_fibers do
      slow = Enumerator.new { |y| 3.times { |n| sleep(0.01) && y << n } }
      [slow.next, slow.next, slow.next]
    end
    assert_equal [0, 1, 2], got
  end

  def test_an_exception_ends_its_fiber_alone_and_is_logged
    done = false
    log = logged do
      in_fibers do
        Fiber.schedule { raise ArgumentError, "one of many" }
        Fiber.schedule { sleep 0.01 && raise(NoMemoryError, "another") }
        sleep 0.05
        done = true
      end
    end
    assert done
    assert_includes log, "ArgumentError: one of many"
    assert_includes log, "NoMemoryError: another"
  end

  def test_exit_in_a_fiber_ends_the_program
    lib = File.expand_path("../lib", __dir__)
    program = "require 'neverblock'; Fiber.set_scheduler(NeverBlock::Scheduler.new); " \
              "Fiber.schedule { sleep }; Fiber.schedule { sleep 0.01; exit 7 }"
    _, status = Open3.capture2e("ruby", "-W0", "-I", lib, "-e", program)
    assert_equal 7, status.exitstatus
  end

  def test_pipes_pass_more_than_they_hold
    text = Random.bytes(1 << 20)
    got = in_fibers do
      reader, writer = IO.pipe
      Fiber.schedule { writer.write(text) && writer.close }
      reader.read
    end
    assert_equal text, got.b
  end

  def test_descriptors_in_blocking_mode_do_not_block
    got = in_fibers do
      reader, writer = IO.pipe
      [reader, writer].each { |io| io.nonblock = false }
      Fiber.schedule { sleep(0.05) && writer.puts("late") }
      ticks = 0
      Fiber.schedule { 3.times { sleep(0.01) && ticks += 1 } }
      [reader.gets, ticks]
    end
    assert_equal ["late\n", 3], got
  end

  def test_sockets_accept_connect_and_answer
    got = in_fibers do
      server = TCPServer.new("127.0.0.1", 0)
      Fiber.schedule do
        2.times { server.accept.then { |io| io.write(io.gets.upcase) && io.close } }
      end
      Array.new(2) do |n|
        TCPSocket.open("127.0.0.1", server.addr[1]) { |io| io.puts("line #{n}") || io.read }
      end
    end
    assert_equal ["LINE 0\n", "LINE 1\n"], got
  end

  def test_net_http_requests_go_on_side_by_side
    server = TCPServer.new("127.0.0.1", 0)
    thread = Thread.new { answer_slowly(server, 20) }
    results = []
    spent = timed do
      in_fibers do
        20.times do
          Fiber.schedule { results << Net::HTTP.get(URI("http://127.0.0.1:#{server.addr[1]}/")) }
        end
      end
    end
    assert_equal ["hi"] * 20, results
    assert_operator spent, :<, 1.5
  ensure
    thread.kill
  end

  def answer_slowly(server, count)
    count.times do
      socket = server.accept
      Thread.new do
        sleep 0.2
        socket.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
        socket.close
      end
    end
  end

  def test_reading_and_writing_one_socket_from_two_fibers
    text = "x" * 500_000
    got = in_fibers do
      a, b = UNIXSocket.pair
      Fiber.schedule { a.write(text) && a.close_write }
      Fiber.schedule { b.write(b.read) && b.close_write }
      a.read
    end
    assert_equal text.size, got.size
  end

  def test_several_fibers_wait_for_one_io
    got = []
    in_fibers do
      reader, writer = IO.pipe
      3.times { |n| Fiber.schedule { got << [n, reader.readpartial(1)] } }
      3.times { sleep(0.005) && writer.write("x") }
    end
    assert_equal [0, 1, 2], got.map(&:first).sort
  end

  def test_closing_an_io_ends_the_wait_for_it
    error = in_fibers do
      reader, = IO.pipe
      Fiber.schedule { sleep(0.02) && reader.close }
      assert_raises(IOError) { reader.read }
    end
    assert_kind_of IOError, error
  end

  def test_the_hook_for_closing_takes_an_io_or_its_number
    in_fibers do
      reader, = IO.pipe
      woken = []
      Fiber.schedule { woken << scheduler.io_wait(reader, IO::READABLE) }
      refute scheduler.io_close(reader.fileno)
      Fiber.schedule { woken << scheduler.io_wait(reader, IO::READABLE) }
      refute scheduler.io_close(reader)
      sleep 0.01
      assert_equal [IO::READABLE] * 2, woken
    end
  end

  def test_waiting_for_an_io_has_a_time_out
    in_fibers do
      reader, writer = IO.pipe
      refute reader.wait_readable(0.02)
      refute reader.wait_readable(0)
      assert writer.wait_writable(0)
      writer.write "x"
      assert reader.wait_readable(1)
    end
  end

  def test_io_select_finds_what_is_ready_and_lets_others_run
    in_fibers do
      (one, writer), (two,) = IO.pipe, IO.pipe
      assert_nil IO.select([one, two], nil, nil, 0.02)
      assert_nil IO.select([one, two], nil, nil, 0)
      Fiber.schedule { sleep(0.02) && writer.write("x") }
      assert_equal [[one], [], []], IO.select([one, two])
      assert_equal [[one], [writer], []], IO.select([one, two], [writer], nil, 1)
      Fiber.schedule { sleep(0.02) && one.close }
    end
  end

  def test_backticks_system_and_popen
    in_fibers do
      done = []
      spent = timed do
        4.times { Fiber.schedule { done << system("sleep 0.5") } }
        sleep 0.01 until done.size == 4
      end
      assert_operator spent, :<, 1.8
      assert_equal "out\n", `echo out; exit 3`
      assert_equal 3, $?.exitstatus
      through = IO.popen("cat", "r+") { |io| io.puts("through") || io.close_write || io.read }
      assert_equal "through\n", through
      out, status = Open3.capture2("tr a-z A-Z", stdin_data: "out")
      assert_equal ["OUT", true], [out, status.success?]
      pid = fork { exit!(4) }
      assert_equal 4, Process.wait2(pid).last.exitstatus
    end
  end

  def test_a_process_is_asked_for_without_waiting
    in_fibers do
      pid = spawn("sleep 0.1")
      assert_nil Process.wait(pid, Process::WNOHANG)
      assert_equal pid, Process.wait(pid)
    end
  end

  def test_a_forked_child_has_no_loop_and_leaves_the_parents_alone
    in_fibers do
      reader, writer = IO.pipe
      pid = fork do
        sleep 0.05
        writer.write Fiber.scheduler.inspect
        exit!(0)
      end
      Process.wait(pid)
      assert_equal "nil", reader.readpartial(9)
      sleep 0.01
    end
  end

  def test_names_are_resolved_in_a_thread_while_the_loop_turns
    slow = ->(*) { Kernel.sleep(0.2) && [Addrinfo.ip("127.0.0.9")] }
    ticks = 0
    got = Addrinfo.stub(:getaddrinfo, slow) do
      in_fibers do
        Fiber.schedule { 10.times { sleep(0.01) && ticks += 1 } }
        scheduler.address_resolve("slow.example")
      end
    end
    assert_equal [["127.0.0.9"], 10], [got, ticks]
  end

  def test_names_and_addresses
    in_fibers do
      assert_includes scheduler.address_resolve("localhost"), "127.0.0.1"
      assert_equal ["10.0.0.1"], scheduler.address_resolve("10.0.0.1")
      assert_equal ["::1"], scheduler.address_resolve("::1")
      assert_equal ["fe80::1%lo"], scheduler.address_resolve("fe80::1%lo")
      assert_empty scheduler.address_resolve("no-such-name.invalid")
      assert_raises(SocketError) { TCPSocket.new("no-such-name.invalid", 1) }
    end
  end

  def test_threads_for_names_are_bounded
    offload = NeverBlock::Offload.new(3)
    most = running = 0
    lock = Thread::Mutex.new
    in_fibers do
      10.times do
        Fiber.schedule do
          offload.call do
            lock.synchronize { most = [most, running += 1].max }
            sleep 0.01
            lock.synchronize { running -= 1 }
          end
        end
      end
    end
    assert_operator most, :<=, 3
    assert_raises(KeyError) { in_fibers { offload.call { {}.fetch(:x) } } }
  end

  def test_the_hook_of_newer_versions_for_several_ios
    in_fibers do
      (one, writer), two = IO.pipe, IO.pipe.first
      Fiber.schedule { sleep(0.02) && writer.write("x") }
      assert_nil scheduler.io_select([one, two], nil, nil, 0.005)
      assert_equal [[one], [], []], scheduler.io_select([one, two], nil, nil, 5)
    end
  end

  # A buffer as Ruby 3.2 and newer hand it over.
  NewerBuffer = Struct.new(:text) do
    def size = text.bytesize

    def read(io, _once, at)
      got = io.read_nonblock(size - at, exception: false)
      return -Errno::EAGAIN::Errno if got == :wait_readable

      text[at, got.bytesize] = got if got
      got.to_s.bytesize
    end

    def write(io, _once, at)
      written = io.write_nonblock(text.byteslice(at..), exception: false)
      written == :wait_writable ? -Errno::EAGAIN::Errno : written
    end
  end

  class NewerScheduler < NeverBlock::Scheduler
    include Hooks::WholeBuffers
  end

  def test_reading_and_writing_as_newer_versions_ask_for_it
    text = Random.bytes(300_000)
    got = NewerBuffer.new("-".b * text.size)
    lengths = {}
    in_fibers(NewerScheduler) do
      reader, writer = IO.pipe
      reader.nonblock = true
      assert_equal(-Errno::EAGAIN::Errno, scheduler.io_read(reader, got, 0))
      Fiber.schedule do
        lengths[:written] = scheduler.io_write(writer, NewerBuffer.new(text), text.size)
        writer.close
      end
      lengths[:read] = scheduler.io_read(reader, got, text.size)
      assert_equal 0, scheduler.io_read(reader, got, 1)
    end
    assert_equal({ written: text.size, read: text.size }, lengths)
    assert_equal text, got.text
  end

  def test_work_of_the_interpreter_runs_in_a_thread
    in_fibers do
      thread = nil
      scheduler.blocking_operation_wait(-> { thread = Thread.current })
      refute_same Thread.current, thread
    end
  end

  def test_yielding_lets_the_others_run_first
    order = []
    in_fibers do
      Fiber.schedule { order << :a && scheduler.yield && nil || order << :b }
      order << :c
      scheduler.yield
      order << :d
    end
    assert_equal %i[a c b d], order
  end

  def test_queues_pass_between_fibers_and_threads
    got = in_fibers do
      queue = Thread::Queue.new
      Thread.new { 3.times { |n| Kernel.sleep(0.01) && queue << n } }
      Fiber.schedule { queue << :fiber }
      Array.new(4) { queue.pop }
    end
    assert_equal [:fiber, 0, 1, 2], got
  end

  def test_a_full_queue_and_another_threads_queue
    in_fibers do
      queue = Thread::SizedQueue.new(1)
      got = []
      thread = Thread.new { 50.times { got << queue.pop } }
      50.times { |n| queue << n }
      thread.join
      assert_equal (0...50).to_a, got
      assert_equal :value, Thread.new { Kernel.sleep(0.02) && :value }.value
    end
  end

  def test_a_mutex_is_handed_between_threads_and_fibers
    lock = Thread::Mutex.new
    count = 0
    bump = lambda do
      50.times { lock.synchronize { count.then { |n| sleep(0.0001) && count = n + 1 } } }
    end
    threads = Array.new(2) { Thread.new(&bump) }
    in_fibers { 3.times { Fiber.schedule(&bump) } }
    threads.each(&:join)
    assert_equal 250, count
  end

  def test_a_condition_variable_wakes_a_fiber_or_times_out
    in_fibers do
      lock = Thread::Mutex.new
      condition = Thread::ConditionVariable.new
      woken = []
      Fiber.schedule { lock.synchronize { woken << condition.wait(lock) && woken << :one } }
      Thread.new { Kernel.sleep(0.01) && lock.synchronize { condition.signal } }.join
      sleep 0.01
      assert_equal :one, woken.last
      assert_in_delta 0.05, timed { lock.synchronize { condition.wait(lock, 0.05) } }, 0.04
    end
  end

  def test_unblocking_another_loops_fiber_wakes_its_selector
    queue = Thread::Queue.new
    spent = nil
    other = Thread.new do
      Fiber.set_scheduler(NeverBlock::Scheduler.new)
      Fiber.schedule { spent = timed { queue.pop } }
    end
    in_fibers { sleep(0.05) && queue << 1 }
    assert other.join(5)
    assert_in_delta 0.05, spent, 0.2
  end

  def test_memory_of_timers_that_were_cancelled_is_given_back
    in_fibers do
      5000.times { Timeout.timeout(1000) { nil } }
      heap = scheduler.timers.instance_variable_get(:@heap)
      assert_operator heap.size, :<, 200
      assert_equal 0, scheduler.timers.size
    end
  end

  def test_nothing_is_kept_of_fibers_that_waited
    in_fibers do
      reader, writer = IO.pipe
      100.times { Fiber.schedule { Timeout.timeout(0.01) { reader.read } rescue nil } }
      sleep 0.1
      100.times { Fiber.schedule { Thread::Queue.new.tap { |q| q << 1 }.pop } }
      writer.close
      sleep 0.02
      assert_empty scheduler.instance_variable_get(:@watches)
      assert_equal [Fiber.current], scheduler.instance_variable_get(:@parked).keys | [Fiber.current]
    end
  end
end
