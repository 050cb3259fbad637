// TLS to a daemon's port, with the files that the environment names.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"log"
	"os"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Returns what a channel is opened with: plain text to a socket, and to a port without STATEWARD_TLS_CA.
func transport(target string) credentials.TransportCredentials {
	ca, cert, key := os.Getenv("STATEWARD_TLS_CA"), os.Getenv("STATEWARD_TLS_CERT"), os.Getenv("STATEWARD_TLS_KEY")
	if ca == "" || strings.HasPrefix(target, "unix:") {
		return insecure.NewCredentials()
	}
	roots := x509.NewCertPool()
	data, err := os.ReadFile(ca)
	if err != nil {
		log.Fatalf("STATEWARD_TLS_CA: %v", err)
	}
	if !roots.AppendCertsFromPEM(data) {
		log.Fatalf("STATEWARD_TLS_CA: %s holds no certificate in PEM", ca)
	}
	config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	if cert != "" {
		if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
			log.Fatalf("STATEWARD_TLS_CERT, STATEWARD_TLS_KEY: %v", err)
		}
		// Each connection reads them again, because they may have been renewed.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cert, key)
			return &pair, err
		}
	}
	return credentials.NewTLS(config)
}
