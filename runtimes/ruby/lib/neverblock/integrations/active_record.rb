# frozen_string_literal: true

require "active_record"
require "active_record/connection_adapters/abstract_adapter"

# From 7.1 on the pool asks ActiveSupport, which was told.
if ActiveRecord.version < Gem::Version.new("7.1")
  module NeverBlock
    module Integrations
      # The connections of ActiveRecord 6.1 and 7.0, keyed by fiber through the pool's own hooks.
      module PoolInFibers
        private

        def connection_cache_key(owner)
          owner.equal?(Thread.current) ? Integrations.context : owner
        end

        def current_thread = @lock_thread || Integrations.context
      end

      # A connection belongs to a fiber, which the pool asks whether it is alive.
      module OwnedByFiber
        def lease
          super
          @owner = Integrations.context
        end

        def expire
          @owner = Thread.current if @owner.equal?(Integrations.context)
          super
        end

        def steal!
          return if @owner.equal?(Integrations.context)

          super
          @owner = Integrations.context
        end
      end

      ActiveRecord::ConnectionAdapters::ConnectionPool.prepend(PoolInFibers)
      ActiveRecord::ConnectionAdapters::AbstractAdapter.prepend(OwnedByFiber)
    end
  end
end

unless defined?(ActiveSupport::IsolatedExecutionState)
  module NeverBlock
    module Integrations
      # `connected_to` switches the role or shard of one fiber.
      module RolesInFibers
        STACK = :neverblock_connected_to_stack
        HANDLER = :neverblock_connection_handler

        def connected_to_stack = Thread.current[STACK] ||= Concurrent::Array.new

        def connection_handler = Thread.current[HANDLER] || default_connection_handler

        def connection_handler=(handler)
          Thread.current[HANDLER] = handler
        end
      end

      ActiveRecord::Base.singleton_class.prepend(RolesInFibers)
    end
  end
end

# A fiber ends with its request, and gives back what the application did not.
NeverBlock.after_request << NeverBlock::Integrations.method(:release_connections)
