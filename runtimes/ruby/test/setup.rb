# frozen_string_literal: true

# What all tests share: waiting for a state with a deadline, and loops in threads.
require "minitest"
require "minitest/mock"
require "socket"
require "timeout"

$LOAD_PATH.unshift File.expand_path("../lib", __dir__)
# Ruby 3.1 says so of IO::Buffer, which the hooks of its scheduler hand over.
Warning[:experimental] = false

module Waiting
  DEADLINE_S = 10

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

  # Returns what the block returns as soon as that is true.
  def eventually(what = "the state", within: DEADLINE_S)
    deadline = now + within
    until (found = yield)
      flunk "#{what} was not reached within #{within} s" if now > deadline
      sleep 0.005
    end
    found
  end

  def timed
    started = now
    yield
    now - started
  end
end

class Case < Minitest::Test
  include Waiting

  # A test that never ends fails by itself and leaves time for the others.
  TEST_TIME_MAX_S = 30

  def capture_exceptions
    super { Timeout.timeout(TEST_TIME_MAX_S) { yield } }
  end
end
