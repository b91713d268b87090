# frozen_string_literal: true

module NeverBlock
  # What other libraries need to be told, once the application has loaded them: what they keep for
  # each thread is each fiber's.
  module Integrations
    # Returns the fiber in threads that have a loop, else the thread.
    def self.context
      Fiber.scheduler.is_a?(Scheduler) ? Fiber.current : Thread.current
    end

    # What was used while the application was loaded belongs to the thread, and is given back first.
    def self.install
      release_connections if defined?(::ActiveRecord::Base)
      require_relative "integrations/active_support" if defined?(::ActiveSupport)
      require_relative "integrations/active_record" if defined?(::ActiveRecord::Base)
    end

    # Gives back the connections that this fiber or thread holds.
    def self.release_connections
      if ::ActiveRecord.version < Gem::Version.new("7.1")
        ::ActiveRecord::Base.clear_active_connections!
      else
        ::ActiveRecord::Base.connection_handler.clear_active_connections!(:all)
      end
    end
  end
end
