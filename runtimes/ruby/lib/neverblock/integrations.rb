# frozen_string_literal: true

module NeverBlock
  # What other libraries need to be told, once the application has loaded them: what they keep for
  # each thread is each fiber's.
  module Integrations
    # Returns the fiber in threads that have a loop, else the thread.
    def self.context
      Fiber.scheduler.is_a?(Scheduler) ? Fiber.current : Thread.current
    end

    def self.install
      require_relative "integrations/active_support" if defined?(::ActiveSupport)
      require_relative "integrations/active_record" if defined?(::ActiveRecord::Base)
    end
  end
end
