{-# LANGUAGE DataKinds, DerivingStrategies, FlexibleInstances, GADTs, GeneralizedNewtypeDeriving #-}
{-# LANGUAGE MultiParamTypeClasses, OverloadedStrings, QuasiQuotes, StandaloneDeriving #-}
{-# LANGUAGE TemplateHaskell, TypeFamilies, UndecidableInstances #-}

import Control.Monad.Logger (runStderrLoggingT)
import Data.String (fromString)
import qualified Data.Text as Text
import Database.Persist.Sqlite
import Network.Wai.Handler.Warp (defaultSettings, runSettings, setHost, setPort)
import System.Environment (getArgs, getEnv)
import Yesod

share [mkPersist sqlSettings, mkMigrate "migrateAll"] [persistLowerCase|
Entry
    name Text.Text
|]

newtype Guestbook = Guestbook ConnectionPool

mkYesod "Guestbook" [parseRoutes|
/     IndexR GET
/sign SignR  POST
|]

instance Yesod Guestbook where
    makeSessionBackend _ = return Nothing

instance YesodPersist Guestbook where
    type YesodPersistBackend Guestbook = SqlBackend
    runDB action = do
        Guestbook pool <- getYesod
        runSqlPool action pool

getIndexR :: Handler Text.Text
getIndexR = do
    entries <- runDB (selectList [] [Asc EntryId])
    return (Text.unlines ("Guests:" : ["- " <> entryName (entityVal entry) | entry <- entries]))

postSignR :: Handler Text.Text
postSignR = do
    name <- maybe "" Text.strip <$> lookupPostParam "name"
    if Text.null name || Text.length name > 80
        then sendResponseStatus (toEnum 400) ("name: 1 to 80 characters\n" :: Text.Text)
        else do
            _ <- runDB (insert (Entry name))
            sendResponseStatus (toEnum 201) ("signed\n" :: Text.Text)

main :: IO ()
main = do
    arguments <- getArgs
    pool <- runStderrLoggingT (createSqlitePool "guestbook.sqlite3" 4)
    case arguments of
        ["migrate"] -> runSqlPool (runMigration migrateAll) pool
        _ -> serve pool

serve :: ConnectionPool -> IO ()
serve pool = do
    host <- getEnv "HOST"
    port <- getEnv "PORT"
    application <- toWaiApp (Guestbook pool)
    runSettings (setHost (fromString host) (setPort (read port) defaultSettings)) application
