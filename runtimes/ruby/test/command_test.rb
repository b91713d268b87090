# frozen_string_literal: true

require_relative "setup"
require_relative "serving"
require_relative "processes"
require "open3"

# The processes: the command, its workers and signals, and how Rack's own commands start it.
class CommandTest < Case
  include Serving
  include Processes

  def test_the_command_serves_and_ends_by_a_signal
    started(*command) do |log|
      assert_equal [200, @pid.to_s], eventually("serving") { answer }.values_at(0, 2)
      busy = connect
      busy.write("GET /?0.4 HTTP/1.1\r\nHost: a\r\n\r\n")
      eventually("under way") { File.exist?(File.join(File.dirname(log), "begun")) }
      pid = @pid
      status = stop(:TERM)
      assert status.success?, status.inspect
      assert_equal pid.to_s, parse(read_to_end(busy)).last
      assert_includes File.read(log), "listens on 0.0.0.0:#{@port}"
    end
  end

  def test_a_unix_socket_that_a_killed_server_left_is_taken_over
    Dir.mktmpdir do |directory|
      path = File.join(directory, "s")
      2.times do
        started(*command("-b", "unix://#{path}")) do
          socket = eventually("serving") { UNIXSocket.new(path) rescue nil }
          socket.write("GET / HTTP/1.0\r\n\r\n")
          assert socket.read.end_with?(@pid.to_s)
        end
      end
    end
  end

  def test_workers_share_the_port_and_are_replaced_when_they_die
    started(*command("-w", "2", "-p", (port = free_port).to_s), port: port) do
      eventually("serving") { answer }
      pids = lambda do
        Array.new(12) { Thread.new { parse(get("/?0.05")).last.to_i } }.map(&:value).uniq
      end
      before = eventually("both serve") { pids.call.then { |found| found if found.size == 2 } }
      refute_includes before, @pid
      Process.kill(:KILL, before.first)
      after = eventually("replaced") do
        found = pids.call rescue []
        found if found.size == 2 && !found.include?(before.first)
      end
      assert_includes after, before.last
      assert stop(:TERM).success?
      after.each { |pid| assert_raises(Errno::ESRCH) { Process.kill(0, pid) } }
    end
  end

  def test_an_application_that_does_not_start_ends_the_command
    [[], ["-w", "2"]].each do |options|
      started(*command(*options), files: { "config.ru" => "raise 'no database'" }) do |log|
        status = Timeout.timeout(DEADLINE_S) { Process.wait2(@pid).last }
        @pid = nil
        assert_equal 1, status.exitstatus
        assert_includes File.read(log), "no database"
      end
    end
  end

  def test_nobody_can_connect_before_the_application_is_loaded
    files = { "config.ru" => "sleep 0.5\n#{PID}" }
    started(*command, files: files) do
      refused = 0
      eventually("serving") { answer || (refused += 1) && nil }
      assert_operator refused, :>, 5
    end
  end

  def test_misuse_is_said
    library = { "RUBYLIB" => LIBRARIES }
    { ["nosuch.ru"] => "there is no nosuch.ru", ["-x"] => "invalid option: -x",
      ["-b", "a:b:c", __FILE__] => "no address", %w[a b] => "one file",
      ["-w", "0"] => "worker" }.each do |options, words|
      text, status = Open3.capture2e(library, *command(*options), chdir: __dir__)
      assert_equal 2, status.exitstatus, text
      assert_includes text, words
    end
    text, status = Open3.capture2e(library, *command("--version"))
    assert status.success?
    assert_includes text, NeverBlock::VERSION
  end

  def test_a_port_that_is_taken_is_said
    taken = TCPServer.new("127.0.0.1", 0)
    started(*command("-b", "127.0.0.1:#{taken.addr[1]}")) do |log|
      status = Timeout.timeout(DEADLINE_S) { Process.wait2(@pid).last }
      @pid = nil
      assert_equal 1, status.exitstatus
      assert_includes File.read(log), "already in use"
    end
  end

  def test_rackup_starts_it_by_name
    port = free_port
    started("rackup", "-s", "neverblock", "-o", "127.0.0.1", "-p", port.to_s, port: port) do
      assert_equal [200, @pid.to_s], eventually("serving") { answer }.values_at(0, 2)
      assert stop(:INT).success?
    end
  end

  # As the README says it to who may not write where Debian keeps gems.
  def test_a_bundle_finds_it_by_its_path
    files = { "config.ru" => PID, "Gemfile" => "gem 'neverblock', path: '#{ROOT}'\n" }
    Dir.mktmpdir do |gems|
      program = "bundle install --local --quiet && exec bundle exec neverblock"
      started({ "GEM_HOME" => gems }, "sh", "-c", program, files: files) do
        assert_equal [200, @pid.to_s], eventually("serving") { answer }.values_at(0, 2)
        assert_equal ["#{gems}/bin/neverblock"], Dir["#{gems}/bin/*"]
        assert stop(:TERM).success?
      end
    end
  end

  def test_a_sinatra_program_starts_it_by_name
    port = free_port
    program = "require 'sinatra'\nget('/') { Fiber.scheduler.class.name }\n"
    started("ruby", "-W0", "hi.rb", "-s", "neverblock", "-o", "127.0.0.1", "-p", port.to_s,
            files: { "hi.rb" => program }, port: port) do |log|
      status, _, body = eventually("serving") { answer }
      assert_equal [200, "NeverBlock::Scheduler"], [status, body]
      assert stop(:TERM).success?, File.read(log)
    end
  end

  def test_sinatra_serves_side_by_side
    program = <<~RUBY
      require "sinatra/base"
      class App < Sinatra::Base
        get("/") { sleep(request.query_string.to_f); "hi from \#{Fiber.scheduler.class}" }
      end
      run App
    RUBY
    started(*command, files: { "config.ru" => program }) do
      status, _, body = eventually("serving") { answer }
      assert_equal [200, "hi from NeverBlock::Scheduler"], [status, body]
      spent = timed do
        statuses = Array.new(20) { Thread.new { parse(get("/?0.3"))[0] } }.map(&:value)
        assert_equal [200], statuses.uniq
      end
      assert_operator spent, :<, 3
    end
  end
end
