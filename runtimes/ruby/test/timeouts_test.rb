# frozen_string_literal: true

require_relative "setup"
require_relative "fibers"

# Time-outs and cancellation: in the right fiber, in time, once.
class TimeoutsTest < Case
  include Fibers

  class Custom < StandardError; end

  def test_only_the_fiber_whose_time_is_up_is_hit
    results = {}
    in_fibers do
      20.times do |n|
        Fiber.schedule do
          results[n] = Timeout.timeout(n.even? ? 0.02 : 5) { sleep(0.1) && :slept }
        rescue Timeout::Error
          results[n] = :timed_out
        end
      end
    end
    assert_equal [:timed_out, :slept] * 10, results.sort.map(&:last)
  end

  def test_each_way_of_waiting_can_be_timed_out
    ways = {
      sleep: -> { sleep },
      pipe: -> { IO.pipe.first.read },
      select: -> { IO.select([IO.pipe.first]) },
      queue: -> { Thread::Queue.new.pop },
      process: -> { system("exec sleep 5") },
      thread: -> { Thread.new { Kernel.sleep }.join },
      accept: -> { TCPServer.new("127.0.0.1", 0).accept },
      name: -> { NeverBlock::Scheduler::Hooks::OFFLOAD.call { Kernel.sleep(0.2) } },
      fibers: -> { scheduler.start { sleep 0.05 } && sleep }
    }
    ways.each do |way, wait|
      spent = in_fibers do
        timed { assert_raises(Timeout::Error, way.to_s) { Timeout.timeout(0.03) { wait.call } } }
      end
      assert_in_delta 0.03, spent, 0.25, way
    end
  end

  def test_a_process_that_was_given_up_can_be_waited_for_again
    in_fibers do
      pid = spawn("exec sleep 5")
      assert_raises(Timeout::Error) { Timeout.timeout(0.02) { Process.wait(pid) } }
      assert_nil Process.wait(pid, Process::WNOHANG)
      Process.kill(:TERM, pid)
      assert_equal pid, Process.wait(pid)
      assert $?.signaled?
    end
  end

  def test_what_ended_in_time_is_never_hit_later
    in_fibers do
      50.times { assert_equal :done, Timeout.timeout(0.005) { :done } }
      sleep 0.02
    end
  end

  def test_the_outer_time_out_reaches_through_the_inner
    in_fibers do
      error = assert_raises(Timeout::Error) do
        Timeout.timeout(0.02) { Timeout.timeout(5, Custom) { sleep } }
      end
      assert_equal "execution expired", error.message
      assert_raises(Custom) { Timeout.timeout(5) { Timeout.timeout(0.01, Custom) { sleep } } }
    end
  end

  def test_the_class_and_message_are_the_callers
    in_fibers do
      error = assert_raises(Custom) { Timeout.timeout(0.01, Custom, "too late") { sleep } }
      assert_equal "too late", error.message
    end
  end

  def test_ensure_runs_and_may_wait_itself
    order = []
    in_fibers do
      Timeout.timeout(0.01) do
        sleep
      ensure
        order << :before
        sleep 0.01
        order << :after
      end
    rescue Timeout::Error
      order << :raised
    end
    assert_equal %i[before after raised], order
  end

  def test_a_wait_in_an_inner_fiber_is_hit_when_that_lets_go
    in_fibers do
      slow = Enumerator.new { |y| loop { sleep(0.05) && y << 1 } }
      spent = timed do
        assert_raises(Timeout::Error) { Timeout.timeout(0.02) { slow.next && sleep } }
      end
      assert_operator spent, :<, 1
    end
  end

  def test_interrupting_a_fiber_raises_in_it_from_any_thread
    in_fibers do
      caught = nil
      fiber = Fiber.schedule { sleep rescue caught = $!.message }
      loop = scheduler
      Thread.new { loop.fiber_interrupt(fiber, IOError.new("closed elsewhere")) }.join
      sleep 0.01
      assert_equal "closed elsewhere", caught
      loop.fiber_interrupt(fiber, IOError.new("too late: it is dead"))
      sleep 0.01
    end
  end

  # Many fibers do random things under random time-outs. Each ends by its own result or its own
  # time-out, never by another's, and never long after its time.
  def test_random_waits_under_random_time_outs_end_as_each_alone_would
    seed = Integer(ENV.fetch("SEED", Random.new_seed % 100_000))
    random = Random.new(seed)
    plans = Array.new(300) { |n| [n, random.rand(5), random.rand * 0.1, random.rand * 0.1] }
    results = {}
    in_fibers { plans.each { |plan| Fiber.schedule { results[plan[0]] = outcome(*plan) } } }
    assert_equal plans.size, results.size, "seed #{seed}"
    plans.each do |n, _, limit, needed|
      kind, value, spent = results.fetch(n)
      assert_equal n, value, "seed #{seed}: it got what another waited for"
      assert_operator spent, :<, 0.6, "seed #{seed}, fiber #{plans[n]}, #{spent}"
      # Both are due at once where they lie close, or where the machine paused.
      next if (limit - needed).abs < 0.05 || spent - [limit, needed].min > 0.05

      expected = limit < needed ? :timed_out : :done
      assert_equal expected, kind, "seed #{seed}, fiber #{plans[n]}, #{spent}"
    end
  end

  def outcome(number, way, limit, needed)
    started = now
    error = Class.new(StandardError) { define_method(:number) { number } }
    value = Timeout.timeout(limit, error) { wait_for(way, needed, number) }
    [:done, value, now - started]
  rescue StandardError => e
    [:timed_out, e.number, now - started]
  end

  def wait_for(way, seconds, number)
    case way
    when 0 then sleep(seconds) && number
    when 1
      reader, writer = IO.pipe
      Fiber.schedule { sleep(seconds) && writer.puts(number) }
      reader.gets.to_i
    when 2
      queue = Thread::Queue.new
      Fiber.schedule { sleep(seconds) && queue << number }
      queue.pop
    when 3 then Thread.new { Kernel.sleep(seconds) && number }.value
    when 4
      IO.select([IO.pipe.first], nil, nil, seconds)
      number
    end
  end

  def test_timers_ring_in_order_whatever_is_added_and_cancelled
    random = Random.new(7)
    timers = NeverBlock::Timers.new
    rung = []
    added = Array.new(2000) { |n| timers.after(random.rand * 0.02) { rung << n } }
    gone = added.each_index.select { |n| n % 3 == 0 }
    gone.each { |n| 2.times { timers.cancel(added[n]) } }
    ats = added.map(&:at)
    (sleep(0.001) && timers.ring) while timers.wait
    assert_equal 2000 - gone.size, rung.size
    assert_empty rung & gone
    assert_equal rung.map { |n| ats[n] }.sort, rung.map { |n| ats[n] }
  end

  def test_a_callback_that_holds_the_reactor_is_reported_with_its_stack
    lines = Thread::Queue.new
    in_fibers do
      detector = NeverBlock::StallDetector.new(scheduler.pulse, limit: 0.05, log: lines.method(:<<))
      detector.start
      sleep 0.1
      assert_empty lines
      deadline = now + 0.4
      busy_on_purpose until now > deadline
      detector.stop
    end
    line = Timeout.timeout(1) { lines.pop }
    assert_includes line, "one callback holds the reactor"
    assert_includes line, "busy_on_purpose"
  end

  def test_a_callback_whose_stack_nobody_saw_is_reported_afterwards
    late = []
    pulse = NeverBlock::Pulse.new(Thread.current)
    pulse.limit = 0.01
    pulse.late = late.method(:<<)
    pulse.beat
    sleep 0.02
    pulse.beat
    assert_equal 1, late.size
    pulse.rest
    sleep 0.02
    pulse.beat
    pulse.seen = pulse.beats
    sleep 0.02
    pulse.rest
    assert_equal 1, late.size, "neither resting nor what was reported already counts"
  end

  def busy_on_purpose = 1000.times { Math.sqrt(2) }
end
