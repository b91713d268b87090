# frozen_string_literal: true

require_relative "setup"
require_relative "serving"
require_relative "postgres"
require "active_record"

class ActiveRecordTest < Case
  include Fibers
  include Serving

  class Account < ActiveRecord::Base
    self.table_name = "accounts"
  end

  POOL = 5

  def setup
    connect_with(pool: POOL)
    ActiveRecord::Base.connection.execute(<<~SQL)
      DROP TABLE IF EXISTS accounts;
      CREATE TABLE accounts (id serial PRIMARY KEY, name text, balance integer NOT NULL DEFAULT 0);
    SQL
    Account.reset_column_information
    Account.columns
    NeverBlock::Integrations.install
    release
  end

  def teardown = ActiveRecord::Base.remove_connection

  def connect_with(**options)
    ActiveRecord::Base.establish_connection(
      adapter: "postgresql", host: Postgres.directory, username: "postgres", database: "postgres",
      reaping_frequency: nil, **options
    )
  end

  def select(sql) = ActiveRecord::Base.connection.select_value(sql)

  def pool = ActiveRecord::Base.connection_pool

  def release = NeverBlock::Integrations.release_connections

  # Runs blocks in fibers of their own; each gives its connection back.
  def each_in_fiber(count)
    in_fibers do
      count.times do |n|
        Fiber.schedule do
          yield n
        ensure
          release
        end
      end
    end
  end

  def backend = select("SELECT pg_backend_pid()")

  def test_each_fiber_has_a_connection_of_its_own_and_keeps_it
    seen = {}
    each_in_fiber(POOL) do |n|
      seen[n] = [backend]
      sleep 0.005 until seen.size == POOL
      seen[n] << select("SELECT pg_backend_pid(), pg_sleep(0.05)")
    end
    seen.each_value { |first, second| assert_equal first, second }
    assert_equal POOL, seen.values.map(&:first).uniq.size
  end

  def test_queries_wait_side_by_side
    gate = Postgres::Gate.new
    opening = Thread.new { gate.open_when(POOL) }
    each_in_fiber(POOL) { select(Postgres::Gate::STATEMENT) }
    opening.join
  end

  def test_a_smaller_pool_queues_in_the_order_of_arrival
    served = []
    each_in_fiber(POOL * 5) do |n|
      connection = ActiveRecord::Base.connection
      served << n
      connection.execute("SELECT pg_sleep(0.02)")
    end
    # The first open their connections meanwhile, which takes each its time.
    first, queued = served.partition { |n| n < POOL }
    assert_equal (0...POOL).to_a, first.sort
    # Those whose turn comes at the same moment may change places, as Ruby hands on no lock.
    queued.each_with_index { |n, place| assert_in_delta n - POOL, place, POOL - 1, queued.inspect }
    assert_equal POOL * 4, queued.size
  end

  def test_who_waits_too_long_for_a_connection_learns_it_and_others_go_on
    connect_with(pool: 1, checkout_timeout: 0.1)
    outcomes = []
    each_in_fiber(3) do |n|
      ActiveRecord::Base.connection.execute("SELECT pg_sleep(0.4)") && outcomes << [n, :done]
    rescue ActiveRecord::ConnectionTimeoutError
      outcomes << [n, :timed_out]
    end
    assert_equal [[0, :done], [1, :timed_out], [2, :timed_out]], outcomes.sort
    assert_equal 0, pool.stat[:waiting]
  end

  def test_parallel_transactions_do_not_mix
    each_in_fiber(30) do |n|
      Account.transaction do
        pid = backend
        account = Account.create!(name: "account #{n}", balance: n)
        sleep(0.001 * (n % 7))
        account.update!(balance: n * 10)
        raise "mixed" unless backend == pid && Account.find(account.id).balance == n * 10
        raise ActiveRecord::Rollback if n.odd?
      end
    end
    balances = Account.order(:id).pluck(:name, :balance)
    assert_equal (0...30).select(&:even?).map { |n| ["account #{n}", n * 10] }.sort, balances.sort
    release
    assert_equal 0, pool.stat[:busy]
  end

  def test_money_that_is_moved_in_parallel_is_neither_made_nor_lost
    ids = Array.new(4) { Account.create!(balance: 100).id }
    release
    random = Random.new(3)
    each_in_fiber(40) do
      from, to = ids.shuffle(random: random).first(2)
      Account.transaction do
        [from, to].sort.each { |id| Account.lock.find(id) }
        Account.where(id: from).update_all("balance = balance - 1")
        sleep 0.001
        Account.where(id: to).update_all("balance = balance + 1")
      end
    end
    assert_equal 400, Account.sum(:balance)
  end

  def test_a_time_out_in_a_transaction_rolls_back_that_one_alone
    results = {}
    each_in_fiber(4) do |n|
      Timeout.timeout(n.zero? ? 0.1 : 5) do
        Account.transaction do
          Account.create!(name: "of #{n}")
          ActiveRecord::Base.connection.execute("SELECT pg_sleep(0.3)")
        end
      end
      results[n] = :done
    rescue Timeout::Error, ActiveRecord::ActiveRecordError => error
      results[n] = error.class
    end
    assert_equal [:done] * 3, results.values_at(1, 2, 3)
    refute_equal :done, results[0]
    assert_equal ["of 1", "of 2", "of 3"], Account.pluck(:name).sort
  end

  def test_connections_of_fibers_that_ended_come_back
    in_fibers { 3.times { Fiber.schedule { backend } } }
    assert_equal 3, pool.stat[:dead]
    pool.reap
    assert_equal [0, 0], pool.stat.values_at(:busy, :dead)
  end

  def test_roles_are_each_fibers
    roles = {}
    each_in_fiber(2) do |n|
      ActiveRecord::Base.while_preventing_writes(n.zero?) do
        sleep 0.02
        roles[n] = ActiveRecord::Base.current_preventing_writes
      end
    end
    assert_equal({ 0 => true, 1 => false }, roles)
  end

  def test_executions_are_each_fibers
    wrapper = Class.new(ActiveSupport::ExecutionWrapper)
    ended = []
    wrapper.to_complete { ended << Fiber.current }
    in_fibers do
      3.times do |n|
        Fiber.schedule { wrapper.run!(reset: true).then { |run| sleep(0.01 * n) && run.complete! } }
      end
      sleep 0.005
      assert_equal 1, ended.size
    end
    assert_equal 3, ended.uniq.size
  end

  def test_code_is_not_reloaded_under_the_requests_of_other_fibers
    lock = ActiveSupport::Concurrency::ShareLock.new
    order = []
    in_fibers do
      Fiber.schedule { lock.sharing { sleep(0.02) && order << :request } }
      lock.exclusive { order << :reload }
    end
    assert_equal %i[request reload], order
  end

  def test_a_threads_connection_is_the_threads
    inner = Enumerator.new { |y| y << backend.tap { release } }
    got = Thread.new { [backend, inner.next].tap { release } }.value
    # From 7.1 on Rails isolates all fibers alike.
    assert_equal ActiveRecord.version < Gem::Version.new("7.1") ? 1 : 2, got.uniq.size
  end

  # The figure: one process, one thread, 200 requests that each wait half a second in the database.
  def test_two_hundred_queries_wait_at_once_and_are_all_answered
    connect_with(pool: 200)
    app = ->(_) { [200, {}, [select(Postgres::Gate::STATEMENT).to_s]] }
    serving(app) { 2.times { ask_at_once(200) } }
    assert_equal 0, pool.stat[:busy]
  end

  def ask_at_once(count)
    sockets = Array.new(count) { connect }
    gate = Postgres::Gate.new
    sockets.each { |socket| socket.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n") }
    gate.open_when(count)
    assert_equal [200], sockets.map { |socket| read_answer(socket)[0] }.uniq
    sockets.each(&:close)
  end
end
