# frozen_string_literal: true

require "active_support"
require "active_support/execution_wrapper"
require "active_support/concurrency/share_lock"

module NeverBlock
  module Integrations
    # Stands for Thread in classes that only ask for the current one, to tell executions apart. With
    # the thread, a request would complete the other requests that are under way.
    module ExecutionInFiber
      def self.current = Integrations.context
    end

    # All versions know who shares this lock by the thread: code would be reloaded under requests.
    ActiveSupport::Concurrency::ShareLock.const_set(:Thread, ExecutionInFiber)

    if defined?(ActiveSupport::IsolatedExecutionState)
      # From 7.0 on it can be told.
      ActiveSupport::IsolatedExecutionState.isolation_level = :fiber
    else
      ActiveSupport::ExecutionWrapper.const_set(:Thread, ExecutionInFiber)
    end
  end
end
