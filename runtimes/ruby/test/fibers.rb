# frozen_string_literal: true

# A loop in a thread of its own, for tests.
require "neverblock"

module Fibers
  # Runs the block in a fiber of a new loop, and returns what it returns, or raises what it raises.
  def in_fibers(kind = NeverBlock::Scheduler)
    outcome = nil
    thread = Thread.new do
      Thread.current.report_on_exception = false
      Fiber.set_scheduler(kind.new)
      Fiber.schedule do
        outcome = [:returned, yield]
      rescue Exception => error
        outcome = [:raised, error]
      end
    end
    flunk "the loop did not end:\n#{thread.backtrace.join("\n")}" unless thread.join(20)
    raise outcome.last if outcome.first == :raised

    outcome.last
  ensure
    thread&.kill
  end

  def scheduler = Fiber.current_scheduler

  # Returns what the program wrote to the log of the gem.
  def logged
    log = StringIO.new
    NeverBlock.log = log
    yield
    log.string
  ensure
    NeverBlock.log = $stderr
  end
end
