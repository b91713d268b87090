# frozen_string_literal: true

# Runs the test files and prints one line for those that failed, and the sum.
require_relative "setup"

class Sum < Minitest::StatisticsReporter
  SLOW_S = 2

  def record(result)
    super
    io.puts "#{result.failure ? "FAILED" : "ok"} #{result.location} <#{result.time.round(2)} s>" if
      result.failure || result.time > SLOW_S
    io.puts result.failures.map(&:message), result.failures.first.backtrace.first(12) if
      result.failure
  end

  def report
    super
    failed = failures + errors + skips
    io.puts "in #{total_time.round(1)} s", "#{count - failed} passed, #{failed} failed"
  end
end

module Minitest
  def self.plugin_sum_init(_options) = reporter.reporters.replace([Sum.new($stdout)])
end
Minitest.extensions << "sum"

files = Dir[File.join(__dir__, "*_test.rb")].sort
files.select! { |file| ARGV.any? { |name| File.basename(file).include?(name) } } if ARGV.any?
files.each { |file| require file }
exit Minitest.run([])
