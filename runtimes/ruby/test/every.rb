# frozen_string_literal: true

# Runs the test files, and reports as Rust's tests do, which `./test` adds up.
require_relative "setup"

class Sum < Minitest::StatisticsReporter
  def record(result)
    super
    failure = result.failures.first
    io.puts result.failures.map(&:message), failure.backtrace.first(12) if failure
    name = result.location[/[\w:]+#\w+/].sub("#", "::")
    io.puts "test #{name} ... #{failure ? "FAILED" : "ok"} <#{result.time.round(3)}s>"
  end

  def report
    super
    failed = failures + errors + skips
    passed = count - failed
    io.puts "test result: #{failed.zero? ? "ok" : "FAILED"}. #{passed} passed; #{failed} failed; " \
            "0 ignored; finished in #{total_time.round(1)}s"
    io.puts "#{passed} passed, #{failed} failed"
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
