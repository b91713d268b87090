# frozen_string_literal: true

require "sinatra/base"
require "openssl"
require "securerandom"
require_relative "live"
require_relative "work"

# The same interface as the server's, with a thread for each request, which waits for what it asks.
module Feed
  VALID_MS = 30_000
  KINDS = { "png" => "\x89PNG\r\n\x1a\n".b, "jpeg" => "\xff\xd8\xff".b, "gif" => "GIF8".b }.freeze
  BODY_MAX = 12 << 20
  IMAGE_MAX = 2 << 20
  PUBLIC = File.expand_path("../public", __dir__)
  TICK_S = Float(ENV.fetch("TICK_MS", "5000")) / 1000
  PICTURE = <<~SQL
    SELECT pictures.id::text, pictures.title, pictures.likes, pictures.album::text,
      albums.title AS "albumTitle", users.name AS owner,
      '/files/' || file || '/small' AS small, '/files/' || file || '/full' AS full
    FROM pictures JOIN albums ON albums.id = album JOIN users ON users.id = owner
  SQL

  class << self
    attr_reader :mailman, :notifier

    def start
      @mailman = Work.actor("mailman") { nil while send_mail }
      @notifier = Work.actor("notifier") { |person, text| notify(person, text) }
      Work.every(TICK_S, "token") { renew_token }
      Work.every(TICK_S, "reminders") { remind }
      Work.every(TICK_S, "mail") { mailman << :post }
      Work.every(TICK_S, "files") { nil while remove_files }
      Work.every(30, "signatures") { Work.query(<<~SQL) }
        DELETE FROM used_signatures WHERE at < now() - interval '60 s'
      SQL
    end

    private

    def notify(person, text)
      Work.query("INSERT INTO notifications (person, text) VALUES ($1, $2)", person, text)
      Work.remote(ENV["PUSH_URL"], body: { person: person, text: text }) if ENV["PUSH_URL"]
    end

    def send_mail
      Work.transaction do |query|
        mail = query.call(<<~SQL).first
          SELECT id, recipient, subject FROM mails WHERE sent_at IS NULL AND next_try <= now()
            AND tries < 5 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
        SQL
        next false unless mail

        begin
          Work.remote(ENV["MAIL_URL"], body: mail) if ENV["MAIL_URL"]
          query.call("UPDATE mails SET sent_at = now() WHERE id = $1", mail["id"])
        rescue Work::Refusal
          query.call(<<~SQL, mail["id"])
            UPDATE mails SET tries = tries + 1, next_try = now() + interval '10 s' * 2 ^ tries
            WHERE id = $1
          SQL
        end
        true
      end
    end

    def renew_token
      url = ENV["PLACES_URL"] or return
      Work.transaction do |query|
        mine = query.call("SELECT pg_try_advisory_xact_lock(20140920) AS mine").first["mine"]
        there = "SELECT 1 FROM access_tokens WHERE service = 'places' AND renew_at > now()"
        next if !mine || query.call(there).any?

        token = Work.remote("#{url}/token", body: {})
        query.call(<<~SQL, token["token"], token["expires_in"] / 2.0)
          INSERT INTO access_tokens VALUES ('places', $1, now() + interval '1 s' * $2::float)
          ON CONFLICT (service) DO UPDATE SET token = $1, renew_at = excluded.renew_at
        SQL
      end
    end

    def remind
      sent = Work.query(<<~SQL)
        WITH due AS (
          DELETE FROM reminders WHERE id IN
            (SELECT id FROM reminders WHERE due_at <= now() LIMIT 100 FOR UPDATE SKIP LOCKED)
          RETURNING person, text)
        INSERT INTO mails (recipient, subject)
        SELECT coalesce(email, name), 'Reminder: ' || text FROM due JOIN users ON users.id = person
        RETURNING id
      SQL
      mailman << :post if sent.any?
    end

    def remove_files
      Work.query(<<~SQL).any?
        WITH taken AS (
          DELETE FROM removals WHERE file IN
            (SELECT file FROM removals LIMIT 20 FOR UPDATE SKIP LOCKED) RETURNING file)
        DELETE FROM files USING taken WHERE files.id = taken.file RETURNING 1
      SQL
    end
  end

  # The routes.
  class Api < Sinatra::Base
    set :show_exceptions, false
    set :raise_errors, false
    set :logging, false
    set :protection, false
    set :static, false
    set :host_authorization, {}

    def refuse(status, message) = raise(Work::Refusal.new(status, message))

    error Work::Refusal do |e|
      json(e.status, { error: e.message })
    end

    error PG::ForeignKeyViolation do
      json(404, { error: "there is no such thing" })
    end

    error do |e|
      warn "#{e.class} #{e.message}"
      json(500, { error: "that did not work, and it is our fault" })
    end

    not_found do
      known = Api.routes.any? do |_, routes|
        routes.any? { |pattern, *| pattern.match(request.path_info) }
      end
      json(known ? 405 : 404, { error: "there is nothing here" })
    end

    def json(status, value)
      [status, { "content-type" => "application/json; charset=utf-8" }, [JSON.generate(value)]]
    end

    def raw
      @raw ||= begin
        refuse(413, "at most 12 MB in one request") if request.content_length.to_i > BODY_MAX
        request.body.read
      end
    end

    def body_json
      @body_json ||= begin
        value = JSON.parse(raw)
        value.is_a?(Hash) ? value : refuse(400, "the body is no JSON object")
      rescue JSON::ParserError
        refuse(400, "the body is no JSON")
      end
    end

    def text(name, max, pattern = /\S/, from: body_json)
      value = from[name]
      good = value.is_a?(String) && value.length <= max && !value.include?("\0")
      good && value.match?(pattern) ? value.strip : refuse(400, "\"#{name}\" is not valid")
    end

    def user
      @user ||= begin
        id, time, given = %w[USER TIME SIGNATURE].map { |name| env["HTTP_X_#{name}"].to_s }
        refuse(401, "this request has to be signed") unless id.match?(/\A\d{1,18}\z/)
        age = (Time.now.to_f * 1000) - time.to_i
        refuse(401, "the signature is too old or too new") if age.abs > VALID_MS
        found = Work.query("SELECT id::text, name, email, key FROM users WHERE id = $1", id).first
        check(found || { "key" => "" }, time, given)
        found
      end
    end

    def check(found, time, given)
      target = env["REQUEST_URI"]
      digest = OpenSSL::Digest::SHA256.hexdigest(raw)
      signed = [request.request_method, target, time, digest].join("\n")
      right = OpenSSL::HMAC.hexdigest("SHA256", found["key"], signed)
      refuse(401, "the signature is not valid") unless OpenSSL.secure_compare(right, given)
      return if request.get?

      Work.query("INSERT INTO used_signatures (signature) VALUES ($1)", given)
    rescue PG::UniqueViolation
      refuse(401, "this signature was used before")
    end

    %w[/ /app.js /style.css /icon.svg].each do |path|
      get(path) { page(path == "/" ? "index.html" : path) }
    end

    # One address may be a page for browsers and JSON for others.
    def page(name)
      headers "vary" => "accept", "cache-control" => "no-cache"
      send_file File.join(PUBLIC, name)
    end

    def wants_page? = env["HTTP_ACCEPT"].to_s.include?("text/html")

    get("/time") { json(200, { time: (Time.now.to_f * 1000).to_i }) }

    get "/health" do
      json(200, { instance: Live::INSTANCE, bus: Live.there?, clients: Live.count })
    end

    post "/users" do
      name = text("name", 30, /\A[\p{L}\p{N}_.-]{2,30}\z/)
      email = text("email", 200, /\A\S+@\S+\z/) if body_json.key?("email")
      taken = Work.query("SELECT 1 FROM users WHERE lower(name) = lower($1)", name)
      refuse(409, "this name is taken") if taken.any?
      key = SecureRandom.hex(32)
      made = Work.query(<<~SQL, name, email, key).first
        WITH made AS (INSERT INTO users (name, email, key) VALUES ($1, $2, $3)
            RETURNING id::text, name),
          mail AS (INSERT INTO mails (recipient, subject)
            SELECT $2, 'Welcome, ' || $1 WHERE $2::text IS NOT NULL)
        SELECT id, name FROM made
      SQL
      Feed.mailman << :post if email
      json(201, made.merge(key: key))
    rescue PG::UniqueViolation
      refuse(409, "this name is taken")
    end

    get "/pictures" do
      before = params["before"] || "999999999999999999"
      refuse(400, '"before" is no number') unless before.match?(/\A\d{1,18}\z/)
      sql = "#{PICTURE} WHERE pictures.id < $1 ORDER BY pictures.id DESC LIMIT 24"
      json(200, { pictures: Work.query(sql, before) })
    end

    get %r{/pictures/(\d{1,18})} do |id|
      page("index.html") if wants_page?
      found = Work.query("#{PICTURE} WHERE pictures.id = $1", id).first
      json(200, found || refuse(404, "there is no such picture"))
    end

    get %r{/albums/(\d{1,18})} do |id|
      album = Work.query("SELECT id::text, title FROM albums WHERE id = $1", id).first
      refuse(404, "there is no such album") unless album
      pictures = Work.query("#{PICTURE} WHERE album = $1 ORDER BY pictures.id", id)
      json(200, album.merge(pictures: pictures))
    end

    get %r{/files/(\h{8}(?:-\h{4}){3}-\h{12})/(small|full)} do |id, size|
      file = Work.query("SELECT type, bytes FROM files WHERE id = $1 AND size = $2", id, size).first
      refuse(404, "there is no such file") unless file
      headers = { "content-type" => file["type"], "x-content-type-options" => "nosniff" }
      [200, headers, [file["bytes"]]]
    end

    get "/me" do
      mine = "SELECT id::text, title FROM albums WHERE owner = $1 ORDER BY id DESC LIMIT 100"
      json(200, user.slice("id", "name", "email").merge(albums: Work.query(mine, user["id"])))
    end

    get "/notifications" do
      sql = "SELECT id::text, text FROM notifications WHERE person = $1 ORDER BY id DESC LIMIT 50"
      json(200, { notifications: Work.query(sql, user["id"]) })
    end

    post "/albums" do
      owner = user["id"]
      sql = "INSERT INTO albums (owner, title) VALUES ($1, $2) RETURNING id::text, title"
      json(201, Work.query(sql, owner, text("title", 120)).first)
    end

    delete %r{/albums/(\d{1,18})} do |id|
      owner = user["id"]
      Work.transaction do |query|
        sql = "SELECT 1 FROM albums WHERE id = $1 AND owner = $2 FOR UPDATE"
        refuse(404, "you have no such album") if query.call(sql, id, owner).empty?
        query.call("INSERT INTO removals SELECT file FROM pictures WHERE album = $1", id)
        query.call("DELETE FROM albums WHERE id = $1", id)
      end
      json(200, { deleted: id })
    end

    # A thread for each upload, and one that waits for them.
    post %r{/albums/(\d{1,18})/pictures} do |id|
      owner = user["id"]
      given = uploads
      mine = Work.query("SELECT 1 FROM albums WHERE id = $1 AND owner = $2", id, owner)
      refuse(404, "you have no such album") if mine.empty?
      done = given.map { |_, bytes| Thread.new { upload(bytes) } }.map(&:value)
      add(id, given.map(&:first), done)
    end

    def uploads
      list = body_json["pictures"]
      good = list.is_a?(Array) && list.size.between?(1, 4)
      refuse(400, '"pictures" has to be a list of 1 to 4') unless good
      list.map do |one|
        refuse(400, "a picture is an object") unless one.is_a?(Hash) && one["image"].is_a?(String)
        [text("title", 120, from: one), one["image"].unpack1("m")]
      end
    end

    # Returns the file's name, or what went wrong, as other uploads go on.
    def upload(bytes)
      kind, = KINDS.find { |_, magic| bytes.start_with?(magic) }
      refuse(422, "only PNG, JPEG and GIF images are taken") unless kind
      refuse(413, "an image has at most 2 MB") if bytes.bytesize > IMAGE_MAX
      small = Work.convert(kind, bytes)
      id = SecureRandom.uuid
      both = [bytes, small].map { |value| { value: value, format: 1 } }
      Work.query(<<~SQL, id, "image/#{kind}", *both)
        INSERT INTO files VALUES ($1, 'full', $2, $3), ($1, 'small', 'image/jpeg', $4)
      SQL
      id
    rescue StandardError => e
      e
    end

    def add(album, titles, done)
      failed = done.find { |one| one.is_a?(StandardError) }
      raise failed if failed

      sql = "INSERT INTO pictures (album, title, file) VALUES ($1, $2, $3) RETURNING id::text"
      ids = titles.zip(done).map { |title, file| Work.query(sql, album, title, file).first["id"] }
      pictures = ids.map { |id| Work.query("#{PICTURE} WHERE pictures.id = $1", id).first }
      pictures.each { |one| Live.publish("/picture/#{one["id"]}/added", { picture: one }) }
      json(201, { pictures: pictures })
    rescue StandardError
      sql = "INSERT INTO removals VALUES ($1) ON CONFLICT DO NOTHING"
      done.grep(String).each { |file| Work.query(sql, file) }
      raise
    end

    post %r{/pictures/(\d{1,18})/likes} do |id|
      who = user
      made = Work.query(<<~SQL, id, who["id"]).first
        WITH made AS (INSERT INTO likes VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING picture)
        UPDATE pictures SET likes = likes + 1 FROM made, albums
        WHERE pictures.id = made.picture AND albums.id = pictures.album
        RETURNING likes, pictures.title, owner::text
      SQL
      unless made
        there = Work.query("SELECT likes FROM pictures WHERE id = $1", id).first
        next json(200, there || refuse(404, "there is no such picture"))
      end
      tell(id, who, made)
      json(201, { likes: made["likes"] })
    end

    def tell(id, who, made)
      title, likes = made.values_at("title", "likes")
      Live.publish("/picture/#{id}/likes", { user: who["name"], title: title, likes: likes })
      return if made["owner"] == who["id"]

      Feed.notifier << [made["owner"], "#{who["name"]} likes “#{title}”"]
    end

    post "/reminders" do
      owner = user["id"]
      seconds = body_json["in_seconds"]
      good = seconds.is_a?(Numeric) && seconds.between?(0, 365 * 24 * 3600)
      refuse(400, '"in_seconds" is not valid') unless good
      sql = "INSERT INTO reminders (person, text, due_at)
        VALUES ($1, $2, now() + $3::float * interval '1 s')"
      Work.query(sql, owner, text("text", 120), seconds)
      json(201, { text: body_json["text"], in_seconds: seconds })
    end

    get %r{/places/([^/]{1,200})} do |name|
      user
      url = ENV["PLACES_URL"] || refuse(503, "no PLACES_URL is configured")
      token = Work.query("SELECT token FROM access_tokens WHERE service = 'places'").first
      refuse(503, "there is no access token yet") unless token
      place = "#{url}/places/#{Rack::Utils.escape_path(name)}"
      json(200, Work.remote(place, token: token["token"]))
    end
  end
end
