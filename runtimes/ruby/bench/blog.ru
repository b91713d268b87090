# frozen_string_literal: true

# The page of the blog's measurement: an entry out of SQLite by Sequel, in a template of Erubis.
require "erubis"
require "sequel"

DATABASE = Sequel.sqlite
DATABASE.create_table(:entries) do
  primary_key :id
  String :title
  String :body
  String :author
end
PARAGRAPH = "Ruby strikes back: the components are chosen with care, and the page is the same. " * 8
DATABASE[:entries].insert(title: "Ruby strikes back", author: "oldmoe",
                          body: Array.new(12) { "<p>#{PARAGRAPH}</p>" }.join("\n"))

class Page
  TEMPLATE = Erubis::EscapedEruby.new(<<~HTML)
    <!doctype html>
    <html><head><title><%= @entry[:title] %></title></head><body>
    <h1><%= @entry[:title] %></h1>
    <p>by <%= @entry[:author] %></p>
    <%== @entry[:body] %>
    <ul><% @links.each do |name| %><li><a href="/<%= name %>"><%= name %></a></li><% end %></ul>
    </body></html>
  HTML
  LINKS = %w[home archive feed about reactor neverblock fibers].freeze

  def initialize(entry)
    @entry = entry
    @links = LINKS
  end

  def to_s = TEMPLATE.evaluate(self)
end

run(lambda do |_env|
  page = Page.new(DATABASE[:entries].first(id: 1)).to_s
  [200, { "content-type" => "text/html", "content-length" => page.bytesize.to_s }, [page]]
end)
